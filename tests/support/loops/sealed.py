"""Loops written after the last change to the rule, published with the results of their first run.

If you change the rule, say so in docs/boundaries.md: these loops are then in-sample like the others.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.support.loops.known import Loop, evaluate, loader, mlp
from tests.support.loops.recorder import Recorder


def amp_with_loader_and_accumulation(recorder: Recorder) -> None:
    """Two batches per update; every third update overflows and is skipped."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    updates = 0
    for number, (images, labels) in enumerate(loader(24)):
        if number % 2 == 0:
            recorder.begin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images).float(), labels) / 2
        scaler.scale(loss * (float("inf") if updates % 3 == 2 and number % 2 else 1.0)).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            updates += 1
            recorder.end()


def packed_sequences_by_bucket(recorder: Recorder) -> None:
    words, recurrent, head = nn.Embedding(32, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 32)
    optimizer = torch.optim.Adam([*words.parameters(), *recurrent.parameters(), *head.parameters()])
    for number in range(16):
        with recorder.iteration():
            longest = 2 + (number * 7) % 9
            lengths = torch.tensor(sorted((max(1, longest - one) for one in range(4)), reverse=True))
            tokens = torch.randint(0, 32, (4, longest))
            packed = nn.utils.rnn.pack_padded_sequence(words(tokens), lengths, batch_first=True)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0], batch_first=True)
            loss = functional.cross_entropy(head(hidden).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def proximal_policy(recorder: Recorder) -> None:
    """Rollouts of a shared body with two heads, then several passes over the same steps in minibatches."""
    body, actor, critic = mlp(8, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    weights = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(weights)
    for _ in range(3):
        states, old = [], []
        with torch.no_grad():
            for _ in range(12):
                with recorder.iteration():
                    state = torch.randn(1, 8)
                    features = body(state)
                    old.append(actor(features).log_softmax(1))
                    critic(features)
                    states.append(state)
        rows, before = torch.cat(states), torch.cat(old)
        for _ in range(2):
            for part in torch.randperm(12).split(4):
                with recorder.iteration():
                    features = body(rows[part])
                    ratio = (actor(features).log_softmax(1) - before[part]).exp()
                    loss = -ratio.clamp(0.8, 1.2).mean() + critic(features).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(weights, 0.5)
                    optimizer.step()


def compiled_with_loader_and_evaluation(recorder: Recorder) -> None:
    plain = mlp()
    model = torch.compile(plain, backend="eager")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(2):
        plain.train()
        for images, labels in loader(6):
            with recorder.iteration():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images), labels)
                recorder.work()
                loss.backward()
                recorder.work()
                optimizer.step()
        plain.eval()
        with torch.no_grad():
            for images, _ in loader(3):
                with recorder.iteration():
                    model(images)
                    recorder.work()


def physics_with_line_search(recorder: Recorder) -> None:
    """The closure computes gradients of the output, and each step evaluates it several times."""
    field = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(field.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    points = torch.linspace(0, 1, 8).unsqueeze(1).requires_grad_()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = field(points)
        (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        loss = (slope - value).square().mean() + (field(torch.zeros(1, 1)) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(10):
        with recorder.iteration():
            optimizer.step(closure)


def descent_by_hand_on_a_module(recorder: Recorder) -> None:
    """No optimizer: weights are changed in place, with an evaluation after every fifth update."""
    model = mlp(8, 1)
    for number in range(15):
        with recorder.iteration():
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.01 * weight.grad
                    weight.grad = None
        if number % 5 == 4:
            with recorder.iteration(), torch.no_grad():
                model(torch.randn(16, 8))


def features_of_a_frozen_teacher(recorder: Recorder) -> None:
    teacher, student, fit = mlp(8, 8), mlp(8, 4), nn.Linear(4, 8)
    teacher.eval().requires_grad_(False)
    distance = nn.SmoothL1Loss()
    optimizer = torch.optim.Adam([*student.parameters(), *fit.parameters()])
    for _ in range(12):
        with recorder.iteration():
            rows = torch.randn(4, 8)
            small = student(rows)
            with torch.inference_mode():
                wanted = teacher(rows)
            loss = distance(fit(small), wanted.clone())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def checkpointed_with_accumulation(recorder: Recorder) -> None:
    first, second, head = mlp(8, 8), mlp(8, 8), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters(), *head.parameters()], lr=0.01)
    for _ in range(9):
        with recorder.iteration():
            for _ in range(3):
                rows = torch.randn(4, 8)
                hidden: Any = checkpoint(first, rows, use_reentrant=False)
                hidden = checkpoint(second, hidden, use_reentrant=False)
                (head(hidden).square().mean() / 3).backward()
            optimizer.step()
            optimizer.zero_grad()


def moving_average_evaluated_now_and_then(recorder: Recorder) -> None:
    model = mlp()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(18):
        with recorder.iteration():
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
        if number % 6 == 5:
            average.eval()
            evaluate(recorder, average, 3)


def tasks_in_turn_with_a_loader_each(recorder: Recorder) -> None:
    body, heads = mlp(8, 8), [nn.Linear(8, 4), nn.Linear(8, 4)]
    optimizer = torch.optim.Adam([*body.parameters(), *heads[0].parameters(), *heads[1].parameters()])
    feeds = [iter(loader(8)), iter(loader(8))]
    for number in range(16):
        with recorder.iteration():
            images, labels = next(feeds[number % 2])
            optimizer.zero_grad()
            functional.cross_entropy(heads[number % 2](body(images)), labels).backward()
            optimizer.step()


def rounds_of_clients(recorder: Recorder) -> None:
    """Federated averaging: copies of a model are trained separately and averaged, with new optimizers each round."""
    shared = mlp()
    for _ in range(3):
        clients = [copy.deepcopy(shared) for _ in range(2)]
        for client in clients:
            optimizer = torch.optim.SGD(client.parameters(), lr=0.01)
            for _ in range(4):
                with recorder.iteration():
                    optimizer.zero_grad()
                    client(torch.randn(4, 8)).square().mean().backward()
                    optimizer.step()
        with torch.no_grad():
            for weight, *others in zip(shared.parameters(), *(one.parameters() for one in clients), strict=True):
                weight.copy_(torch.stack([other.detach() for other in others]).mean(0))


def layers_thawed_one_by_one(recorder: Recorder) -> None:
    """A new optimizer whenever more of the body is trained."""
    body, head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 2)
    for layer in body:
        layer.requires_grad_(False)
    for thawed in (None, body[2], body[0]):
        if thawed is not None:
            thawed.requires_grad_(True)
        trained = [weight for weight in [*body.parameters(), *head.parameters()] if weight.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.01)
        for _ in range(6):
            with recorder.iteration():
                optimizer.zero_grad()
                head(body(torch.randn(4, 8))).square().mean().backward()
                optimizer.step()


def triplets_with_a_loss_module(recorder: Recorder) -> None:
    tower, distance = mlp(8, 4), nn.TripletMarginLoss()
    optimizer = torch.optim.Adam(tower.parameters())
    for _ in range(12):
        with recorder.iteration():
            anchors, near, far = (tower(torch.randn(4, 8)) for _ in range(3))
            loss = distance(anchors, near, far)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def self_play_then_learning_from_memory(recorder: Recorder) -> None:
    """One network plays games of varying length; each game is followed by four updates from memory."""
    network = mlp(8, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    memory: list[torch.Tensor] = []
    for game in range(6):
        network.eval()
        with torch.no_grad():
            for _ in range(5 + game % 3):
                with recorder.iteration():
                    state = torch.randn(1, 8)
                    network(state)
                    memory.append(state)
        network.train()
        for _ in range(4):
            with recorder.iteration():
                rows = torch.cat([memory[int(index)] for index in torch.randint(0, len(memory), (4,))])
                optimizer.zero_grad()
                network(rows).square().mean().backward()
                optimizer.step()


LOOPS: dict[str, Loop] = {
    "AMP, loader, accumulation x2, skipped updates": amp_with_loader_and_accumulation,
    "packed sequences by bucket": packed_sequences_by_bucket,
    "proximal policy (PPO)": proximal_policy,
    "torch.compile, loader, evaluation": compiled_with_loader_and_evaluation,
    "physics (PINN), LBFGS with line search": physics_with_line_search,
    "descent by hand on a module, evaluation": descent_by_hand_on_a_module,
    "features of a frozen teacher": features_of_a_frozen_teacher,
    "checkpointing, accumulation x3": checkpointed_with_accumulation,
    "moving average (EMA) evaluated now and then": moving_average_evaluated_now_and_then,
    "tasks in turn, a loader each": tasks_in_turn_with_a_loader_each,
    "rounds of clients (federated)": rounds_of_clients,
    "layers thawed one by one": layers_thawed_one_by_one,
    "triplets, loss module": triplets_with_a_loss_module,
    "self-play, learning from memory": self_play_then_learning_from_memory,
}
