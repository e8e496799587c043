"""Background tasks: a failure is reported, and no task outlives its owner."""

import asyncio

from nodedaemon.service.tasks import BackgroundTasks


def test_a_task_that_fails_reaches_the_exception_handler_and_a_cancelled_one_does_not():
    reported = []

    async def fail():
        raise AssertionError("broken invariant")

    async def scenario():
        tasks, is_ended, is_reported = BackgroundTasks(), asyncio.Event(), asyncio.Event()

        def handle(_loop, context):
            reported.append(context["exception"])
            is_reported.set()

        asyncio.get_running_loop().set_exception_handler(handle)

        async def wait():
            try:
                await asyncio.Event().wait()
            finally:
                is_ended.set()

        tasks.start(wait())
        tasks.start(fail())
        await asyncio.wait_for(is_reported.wait(), 30)
        await tasks.close()
        assert is_ended.is_set()

    asyncio.run(scenario())
    assert [str(error) for error in reported] == ["broken invariant"]
