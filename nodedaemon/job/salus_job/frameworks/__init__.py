"""Adaptors for deep-learning frameworks: one folder per framework, behind the interface in base.py.

An adaptor is imported only after the program has imported its framework, and never imports the framework by itself.
To add one, write a subclass of `FrameworkAdaptor` in a folder of its own and name it in `ADAPTORS`.
"""

# The name under which programs import the framework: module and class of its adaptor.
ADAPTORS = {"torch": ("salus_job.frameworks.torch.adaptor", "TorchAdaptor")}
