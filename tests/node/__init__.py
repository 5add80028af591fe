"""Tests of the node: sensors, actuators, the agent, the checkup."""
