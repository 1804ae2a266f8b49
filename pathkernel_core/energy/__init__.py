"""The energy of a problem at an order parameter, in every form (Eq. 12, 34).

It imports ``paths`` and what is below. A form is a subclass of
:class:`pathkernel_core.energy.form.Form` in ``examples``, ``features``, ``kernel_space``,
``given_kernels`` or ``branch_spaces``; :mod:`pathkernel_core.energy.problem` chooses one, by the
times in ``costs``. The other modules help them.
"""
