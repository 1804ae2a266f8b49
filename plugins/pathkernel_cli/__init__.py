"""The command line of pathkernel. Every command calls a public function a notebook could call."""
