"""The commands of ``pathkernel``: their options, and what they print and write.

It imports every room but analyses and samplers. Begin with :mod:`pathkernel.commands.run`.
"""
