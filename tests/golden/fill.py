"""`python -m tests.golden.fill`: decide the golden cases that have no output yet."""

import json
from pathlib import Path

from fairlead.core.canonical import canonical
from fairlead.schema.kinds import KINDS


def main() -> None:
    """Fill in what is missing; existing outputs are never touched."""
    for file in Path(__file__).parent.glob("*.jsonl"):
        lines = []
        for case in map(json.loads, file.read_text().splitlines()):
            if "output" not in case:
                case["output"] = KINDS[file.stem].run(json.dumps(case["input"]).encode()).result
            lines.append(canonical(case).decode())
        file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
