"""The documentation is true: commands run, tables are complete, promises have their tests."""
