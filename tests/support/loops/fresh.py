"""Loops written after the first held-out set had led to a fix of the rule.

The rule was right on all of them at first. It was changed twice afterwards: optimizers that are gone no longer count,
and watching costs less.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from tests.support.loops.known import Loop, lightning_classifier, lightning_fit, loader, mlp
from tests.support.loops.recorder import Recorder


def autoencoder_with_schedule_and_clipping(recorder: Recorder) -> None:
    encoder, decoder = mlp(8, 4), mlp(2, 8)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(12):
        with recorder.iteration():
            rows = torch.randn(4, 8)
            mean, spread = encoder(rows).chunk(2, 1)
            loss = functional.mse_loss(decoder(mean + spread.exp() * torch.randn(4, 2)), rows)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()


def actor_and_critic_with_an_optimizer_each(recorder: Recorder) -> None:
    actor, critic = mlp(8, 3), mlp(8, 1)
    actor_optimizer = torch.optim.Adam(actor.parameters())
    critic_optimizer = torch.optim.Adam(critic.parameters())
    for _ in range(12):
        with recorder.iteration():
            states = torch.randn(4, 8)
            advantage = torch.randn(4, 1) - critic(states)
            critic_optimizer.zero_grad()
            advantage.square().mean().backward()
            critic_optimizer.step()
            actor_optimizer.zero_grad()
            (-(actor(states).log_softmax(1)[:, :1] * advantage.detach()).mean()).backward()
            actor_optimizer.step()


def full_batch_with_evaluation_every_epoch(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.randn(16, 8)
    for _ in range(16):
        with recorder.iteration():
            model.train()
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
        with recorder.iteration(), torch.no_grad():
            model.eval()
            model(rows)


def encoder_and_decoder_by_hand(recorder: Recorder) -> None:
    encoder, cell, head = nn.GRU(4, 8, batch_first=True), nn.GRUCell(4, 8), nn.Linear(8, 4)
    optimizer = torch.optim.Adam([*encoder.parameters(), *cell.parameters(), *head.parameters()])
    for number in range(10):
        with recorder.iteration():
            _, state = encoder(torch.randn(2, 5, 4))
            hidden, loss = state[0], torch.zeros(())
            word = torch.zeros(2, 4)
            for _ in range(4 + number % 3):
                hidden = cell(word, hidden)
                word = head(hidden)
                loss = loss + word.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def folds_of_a_cross_validation(recorder: Recorder) -> None:
    for _ in range(3):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in loader(6):
            with recorder.iteration():
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        with torch.no_grad():
            for images, _ in loader(2):
                with recorder.iteration():
                    model(images)


def search_over_models_without_loader(recorder: Recorder) -> None:
    for rate in (0.1, 0.01, 0.001):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(8):
            with recorder.iteration():
                optimizer.zero_grad()
                model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()


def two_heads_in_turn(recorder: Recorder) -> None:
    body, heads = mlp(8, 8), [nn.Linear(8, 2), nn.Linear(8, 3)]
    optimizer = torch.optim.Adam([*body.parameters(), *heads[0].parameters(), *heads[1].parameters()])
    for number in range(14):
        with recorder.iteration():
            optimizer.zero_grad()
            heads[number % 2](body(torch.randn(4, 8))).square().mean().backward()
            optimizer.step()


def cycle_of_two_generators(recorder: Recorder) -> None:
    there, back, judge, critic = mlp(8, 8), mlp(8, 8), mlp(8, 1), mlp(8, 1)
    generators = torch.optim.Adam([*there.parameters(), *back.parameters()])
    judges = torch.optim.Adam([*judge.parameters(), *critic.parameters()])
    for (one, _), (other, _) in zip(loader(10), loader(10), strict=True):
        with recorder.iteration():
            fake_other, fake_one = there(one), back(other)
            generators.zero_grad()
            loss = functional.l1_loss(back(fake_other), one) + functional.l1_loss(there(fake_one), other)
            (loss - judge(fake_other).mean() - critic(fake_one).mean()).backward()
            generators.step()
            judges.zero_grad()
            (judge(fake_other.detach()).mean() - judge(other).mean()).backward()
            (critic(fake_one.detach()).mean() - critic(one).mean()).backward()
            judges.step()


def accelerate_with_accumulation(recorder: Recorder) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(12))
    for number, (images, labels) in enumerate(batches):
        if number % 3 == 0:
            recorder.begin()
        with accelerator.accumulate(model):
            accelerator.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
        if number % 3 == 2:
            recorder.end()


def lightning_with_accumulation_and_early_validation(recorder: Recorder) -> None:
    class Module(lightning_classifier()):  # type: ignore[misc]
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

        def on_train_batch_start(self, _: Any, number: int) -> None:
            if number % 2 == 0:
                recorder.begin()

        def on_train_batch_end(self, _: Any, __: Any, number: int) -> None:
            if number % 2 == 1:
                recorder.end()

        def on_validation_batch_start(self, *_: Any) -> None:
            recorder.begin()

        def on_validation_batch_end(self, *_: Any) -> None:
            recorder.end()

    lightning_fit(Module(), loader(12), loader(3), max_epochs=1, accumulate_grad_batches=2, val_check_interval=4)


def averaged_weights(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    averaged = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loader(8):
            with recorder.iteration():
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                averaged.update_parameters(model)
    update_bn(loader(4), averaged)


def diffusion_then_sampling(recorder: Recorder) -> None:
    model = mlp(9, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        with recorder.iteration():
            noise, time = torch.randn(4, 8), torch.rand(4, 1)
            optimizer.zero_grad()
            functional.mse_loss(model(torch.cat([noise, time], 1)), noise).backward()
            optimizer.step()
    with torch.no_grad():
        rows = torch.randn(4, 8)
        for number in range(10):
            with recorder.iteration():
                rows = rows - 0.1 * model(torch.cat([rows, torch.full((4, 1), number / 10)], 1))


def two_optimizers_side_by_side(recorder: Recorder) -> None:
    model = mlp()
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizers = [torch.optim.SGD(matrices, lr=0.01, momentum=0.9), torch.optim.AdamW(vectors)]
    for _ in range(12):
        with recorder.iteration():
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()


def accumulation_with_a_short_last_window(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        batches = list(loader(10))
        for start in range(0, len(batches), 4):
            with recorder.iteration():
                for images, labels in batches[start : start + 4]:
                    functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                optimizer.zero_grad()


def learning_to_learn(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            for _ in range(3):
                weights = dict(model.named_parameters())
                loss = torch.func.functional_call(model, weights, torch.randn(4, 8)).square().mean()
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                moved = {
                    name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)
                }
                torch.func.functional_call(model, moved, torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


def frozen_backbone(recorder: Recorder) -> None:
    backbone, head = mlp(8, 8).eval(), nn.Linear(8, 4)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loader(8):
            with recorder.iteration():
                with torch.no_grad():
                    features = backbone(images)
                optimizer.zero_grad()
                functional.cross_entropy(head(features), labels).backward()
                optimizer.step()


def batches_that_fail_are_skipped(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(16):
        with recorder.iteration(), contextlib.suppress(RuntimeError):
            optimizer.zero_grad()
            # Every fifth batch has a wrong shape and fails, like a batch that is too large for memory.
            model(torch.randn(4, 9 if number % 5 == 4 else 8)).square().mean().backward()
            optimizer.step()


def compiled_with_changing_shapes(recorder: Recorder) -> None:
    plain = mlp()
    model = torch.compile(plain, backend="eager", dynamic=True)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for number in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            loss = model(torch.randn(3 + number % 4, 8)).square().mean()
            recorder.work()
            loss.backward()
            recorder.work()
            optimizer.step()


LOOPS: dict[str, Loop] = {
    "autoencoder, schedule, clipping": autoencoder_with_schedule_and_clipping,
    "actor and critic, an optimizer each": actor_and_critic_with_an_optimizer_each,
    "full batch, evaluation every epoch": full_batch_with_evaluation_every_epoch,
    "encoder, decoder cell by hand": encoder_and_decoder_by_hand,
    "folds of a cross-validation": folds_of_a_cross_validation,
    "search over models, no loader": search_over_models_without_loader,
    "two heads in turn": two_heads_in_turn,
    "CycleGAN, loaders zipped": cycle_of_two_generators,
    "accelerate, accumulation x3": accelerate_with_accumulation,
    "Lightning, accumulation x2, early validation": lightning_with_accumulation_and_early_validation,
    "averaged weights (SWA)": averaged_weights,
    "diffusion, then sampling": diffusion_then_sampling,
    "two optimizers side by side": two_optimizers_side_by_side,
    "accumulation, short last window": accumulation_with_a_short_last_window,
    "learning to learn (MAML)": learning_to_learn,
    "frozen backbone": frozen_backbone,
    "batches that fail are skipped": batches_that_fail_are_skipped,
    "torch.compile, changing shapes": compiled_with_changing_shapes,
}
