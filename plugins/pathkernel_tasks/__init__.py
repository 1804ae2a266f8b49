"""Tasks that ship with pathkernel."""
