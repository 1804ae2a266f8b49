"""Commands and studies: seconds, memory, damage, and choices that their users make."""
