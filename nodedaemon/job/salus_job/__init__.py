"""What a job's process runs of Salus: finds iterations, measures memory, passes the gate. Loaded by sitecustomize.

A job need not know of this package. One that wants to say more than can be seen may import it:

    import salus_job

    salus_job.declare(persistent="2G", ephemeral="512M")
    for batch in batches:
        with salus_job.iteration():
            ...

Without Salus both do nothing. Python 3.8, standard library only.
"""

from salus_job.api import declare, iteration

__all__ = ["declare", "iteration"]
