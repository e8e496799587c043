"""Devices of this node: discovery, lane memory, readings, launch gate, memory limits, MPS."""
