"""Loops written after the boundary rule was frozen: programs on which it was not designed.

An iteration is one mini-batch: an update, or a forward pass of which only the results are kept (a step of a rollout, a
token).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tests.support.loops.known import Loop, evaluate, lightning_fit, loader, mlp
from tests.support.loops.recorder import Recorder


def amp_with_skipped_steps(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(15):
        with recorder.iteration():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            # Every fourth loss overflows: the scaler then skips the optimizer's step.
            scaler.scale(loss * (float("inf") if number % 4 == 3 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()


def variable_sequence_length(recorder: Recorder) -> None:
    recurrent, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()])
    for number in range(14):
        with recorder.iteration():
            optimizer.zero_grad()
            hidden, _ = recurrent(torch.randn(2, 3 + number * 5 % 11, 4))
            head(hidden[:, -1]).square().mean().backward()
            optimizer.step()


def rollouts_and_updates(recorder: Recorder) -> None:
    policy, value = mlp(8, 3), mlp(8, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()])
    for _ in range(4):
        seen, taken = [], []
        with torch.no_grad():
            for _ in range(16):
                with recorder.iteration():
                    state = torch.randn(1, 8)
                    seen.append(state)
                    taken.append(policy(state).argmax(1))
        states, choices = torch.cat(seen), torch.cat(taken)
        for part in range(4):
            with recorder.iteration():
                rows = slice(4 * part, 4 * part + 4)
                loss = functional.cross_entropy(policy(states[rows]), choices[rows]) + value(states[rows]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def reinforce(recorder: Recorder) -> None:
    policy = mlp(8, 3)
    optimizer = torch.optim.Adam(policy.parameters())
    for episode in range(10):
        with recorder.iteration():
            kept = [policy(torch.randn(1, 8)).log_softmax(1)[0, 0] for _ in range(6 + episode % 4)]
            optimizer.zero_grad()
            torch.stack(kept).sum().backward()
            optimizer.step()


def act_and_learn_with_target(recorder: Recorder) -> None:
    online = mlp(8, 3)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters())
    for number in range(20):
        with recorder.iteration():
            # Exploration: the network does not choose every action.
            if number % 3:
                with torch.no_grad():
                    online(torch.randn(1, 8))
            with torch.no_grad():
                wanted = target(torch.randn(4, 8)).amax(1)
            optimizer.zero_grad()
            functional.mse_loss(online(torch.randn(4, 8)).amax(1), wanted).backward()
            optimizer.step()


def compiled_step_with_graph_break(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def forward(images: torch.Tensor) -> torch.Tensor:
        hidden = model[0](images)
        torch._dynamo.graph_break()
        return model[2](model[1](hidden)).square().mean()

    compiled = torch.compile(forward, backend="aot_eager")
    for _ in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            loss = compiled(torch.randn(4, 8))
            recorder.work()
            loss.backward()
            recorder.work()
            optimizer.step()


def mean_teacher(recorder: Recorder) -> None:
    student = mlp()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(3):
        for _ in range(4):
            with recorder.iteration():
                labelled, unlabelled = torch.randn(4, 8), torch.randn(4, 8)
                with torch.no_grad():
                    wanted = teacher(unlabelled)
                optimizer.zero_grad()
                loss = student(labelled).square().mean() + functional.mse_loss(student(unlabelled), wanted)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                        slow.lerp_(fast, 0.1)
        teacher.eval()
        evaluate(recorder, teacher, 4)
        teacher.train()


def two_loaders_zipped(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for (one, labels), (other, _) in zip(loader(8), loader(8), strict=True):
            with recorder.iteration():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(one), labels) + model(other).square().mean()
                loss.backward()
                optimizer.step()


def gradient_checkpointing(recorder: Recorder) -> None:
    front, back = mlp(8, 8), mlp(8, 1)
    optimizer = torch.optim.SGD([*front.parameters(), *back.parameters()], lr=0.01)
    for _ in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            hidden = checkpoint(front, torch.randn(4, 8, requires_grad=True), use_reentrant=False)
            back(hidden).mean().backward()
            optimizer.step()


def evaluation_between_updates(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(12):
        with recorder.iteration():
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        if number % 3 == 2:
            model.eval()
            evaluate(recorder, model, 12)
            model.train()


def two_towers(recorder: Recorder) -> None:
    images, texts = mlp(), mlp()
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters(), temperature])
    for _ in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            scores = images(torch.randn(4, 8)) @ texts(torch.randn(4, 8)).T * temperature
            (
                functional.cross_entropy(scores, torch.arange(4)) + functional.cross_entropy(scores.T, torch.arange(4))
            ).backward()
            optimizer.step()


def manual_descent(recorder: Recorder) -> None:
    model = mlp()
    for _ in range(14):
        with recorder.iteration():
            loss = model(torch.randn(4, 8)).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight -= 0.01 * gradient


def generation(recorder: Recorder) -> None:
    embed, cell, head = nn.Embedding(16, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 16)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([embed, cell, head])

        def forward(self, token: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
            hidden, state = cell(embed(token), state)
            return head(hidden[:, -1]), state

    decoder = Decoder().eval()
    with torch.inference_mode():
        for _ in range(3):
            token, state = torch.zeros(1, 1, dtype=torch.long), None
            for _ in range(10):
                with recorder.iteration():
                    logits, state = decoder(token, state)
                    token = logits.argmax(1, keepdim=True)


def two_passes_in_a_step(recorder: Recorder) -> None:
    """Sharpness-aware minimisation: one optimizer wraps another, with two forwards and backwards before each step."""

    class Sharp(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            rows = list(parameters)
            super().__init__(rows, {"lr": 0.01})
            self.base = torch.optim.SGD(rows, lr=0.01)

        def climb(self) -> None:
            with torch.no_grad():
                for weight in self.param_groups[0]["params"]:
                    weight += 0.01 * weight.grad
            self.zero_grad()

        def descend(self) -> None:
            self.base.step()
            self.zero_grad()

    model = mlp()
    optimizer = Sharp(model.parameters())
    for _ in range(45):
        with recorder.iteration():
            images = torch.randn(4, 8)
            model(images).square().mean().backward()
            optimizer.climb()
            model(images).square().mean().backward()
            optimizer.descend()


def recurrent_cell_by_hand(recorder: Recorder) -> None:
    cell = nn.LSTMCell(4, 8)
    optimizer = torch.optim.Adam(cell.parameters())
    for _ in range(8):
        with recorder.iteration():
            state = (torch.zeros(2, 8), torch.zeros(2, 8))
            for _ in range(20):
                state = cell(torch.randn(2, 4), state)
            optimizer.zero_grad()
            state[0].square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        for _ in range(4):
            with recorder.iteration():
                state = (torch.zeros(2, 8), torch.zeros(2, 8))
                for _ in range(20):
                    state = cell(torch.randn(2, 4), state)


def several_updates_of_one_batch(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader(8):
        for _ in range(5):
            with recorder.iteration():
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()


def gan_with_penalty_and_loader(recorder: Recorder) -> None:
    generator, critic = mlp(4, 8), mlp(8, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters())
    critic_optimizer = torch.optim.Adam(critic.parameters())
    for number, (real, _) in enumerate(loader(16)):
        with recorder.iteration():
            fake = generator(torch.randn(4, 4))
            mixed = (0.5 * real + 0.5 * fake).detach().requires_grad_()
            slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
            critic_optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(real).mean() + (slope.norm() - 1).square()).backward()
            critic_optimizer.step()
            if number % 4 == 3:
                generator_optimizer.zero_grad()
                (-critic(generator(torch.randn(4, 4))).mean()).backward()
                generator_optimizer.step()


def metric_modules(recorder: Recorder) -> None:
    class Accuracy(nn.Module):
        def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (scores.argmax(1) == labels).float().mean()

    model, loss_of, accuracy, error = mlp(), nn.CrossEntropyLoss(), Accuracy(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loader(8):
            with recorder.iteration():
                optimizer.zero_grad()
                scores = model(images)
                loss_of(scores, labels).backward()
                optimizer.step()
                accuracy(scores, labels)
                error(scores, torch.zeros(4, 4))


def pretraining_then_tuning(recorder: Recorder) -> None:
    body, head = mlp(8, 8), nn.Linear(8, 4)
    first = torch.optim.SGD(body.parameters(), lr=0.01)
    for _ in range(8):
        with recorder.iteration():
            first.zero_grad()
            body(torch.randn(4, 8)).square().mean().backward()
            first.step()
    second = torch.optim.Adam(head.parameters())
    for _ in range(14):
        with recorder.iteration():
            with torch.no_grad():
                hidden = body(torch.randn(4, 8))
            second.zero_grad()
            head(hidden).square().mean().backward()
            second.step()


def batches_fetched_ahead(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader(16))
    following = next(batches, None)
    while following is not None:
        with recorder.iteration():
            images, labels = following
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            following = next(batches, None)
            loss.backward()
            optimizer.step()


def embedding_with_loader(recorder: Recorder) -> None:
    model = mlp().eval()
    rows = []
    with torch.inference_mode():
        for images, _ in loader(12):
            with recorder.iteration():
                rows.append(model(images))
    assert torch.cat(rows).shape == (48, 4)


def lightning_manual_optimization(recorder: Recorder) -> None:
    import lightning

    class Gan(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = mlp(4, 8), mlp(8, 1)

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.critic.parameters())]

        def training_step(self, batch: Any, _: int) -> None:
            recorder.begin()
            first, second = self.optimizers()
            fake = self.generator(torch.randn(4, 4))
            second.zero_grad()
            self.manual_backward(self.critic(fake.detach()).mean() - self.critic(batch[0]).mean())
            second.step()
            first.zero_grad()
            self.manual_backward(-self.critic(fake).mean())
            first.step()
            recorder.end()

    lightning_fit(Gan(), loader(12), max_epochs=1)


def parallel_module_in_one_process(recorder: Recorder) -> None:
    import tempfile
    from pathlib import Path

    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            model = DistributedDataParallel(mlp())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batches: DataLoader[Any] = loader(10)
            for images, labels in batches:
                with recorder.iteration():
                    optimizer.zero_grad()
                    functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        finally:
            distributed.destroy_process_group()


LOOPS: dict[str, Loop] = {
    "AMP, GradScaler skips steps": amp_with_skipped_steps,
    "variable sequence length": variable_sequence_length,
    "rollouts without gradients, then updates": rollouts_and_updates,
    "REINFORCE, episodes of varying length": reinforce,
    "act, target, learn (DQN)": act_and_learn_with_target,
    "torch.compile function with a graph break": compiled_step_with_graph_break,
    "mean teacher, teacher evaluated": mean_teacher,
    "two loaders zipped": two_loaders_zipped,
    "gradient checkpointing": gradient_checkpointing,
    "evaluation between updates, no loader": evaluation_between_updates,
    "contrastive, two towers": two_towers,
    "manual descent, autograd.grad": manual_descent,
    "generation, token by token": generation,
    "two passes in a step (SAM)": two_passes_in_a_step,
    "recurrent cell by hand, then evaluation": recurrent_cell_by_hand,
    "several updates of one batch": several_updates_of_one_batch,
    "WGAN-GP, loader, critic 4:1": gan_with_penalty_and_loader,
    "metric modules after the step": metric_modules,
    "pre-training, then tuning": pretraining_then_tuning,
    "batches fetched ahead in the middle": batches_fetched_ahead,
    "embedding with a loader": embedding_with_loader,
    "Lightning, manual optimization": lightning_manual_optimization,
    "DistributedDataParallel, one rank": parallel_module_in_one_process,
}
