"""How things look: console and progress, tables, and figures from a handful of primitives."""
