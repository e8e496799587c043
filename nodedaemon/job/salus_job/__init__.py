"""The part of Salus in a job's process: it finds iterations, measures memory and waits at the gate.

sitecustomize loads it, and a job need not know about it. A job can import it to mark its iterations itself:

    import salus_job

    salus_job.declare(persistent="2G", ephemeral="512M")
    for batch in batches:
        with salus_job.iteration():
            ...

Without Salus, both calls do nothing. The package needs Python 3.8 and only the standard library. The modules
here are independent of the framework; frameworks/ has a folder for each framework.
"""

from salus_job.api import declare, iteration

__all__ = ["declare", "iteration"]
