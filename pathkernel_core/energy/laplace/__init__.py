"""Energy of classes by Laplace's approximation at the mode of the outputs, in every form.

It may import the other modules of ``energy``. Begin with ``mode``, which has the equations.
"""
