"""Trains a small transformer language model, accumulating the gradients of several micro-batches before each step.

Persistent and ephemeral memory are about equal here. There is no DataLoader: batches are made in the loop.
Plain PyTorch; raise --batch or --width to use more memory.
"""

import argparse
import hashlib

import torch
from torch import nn

TOKEN_COUNT = 512
HEAD_COUNT = 4


class LanguageModel(nn.Module):
    def __init__(self, width, layers, length):
        super().__init__()
        self.tokens = nn.Embedding(TOKEN_COUNT, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, HEAD_COUNT, 4 * width, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKEN_COUNT)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.body(self.tokens(tokens) + self.places, mask=mask, is_causal=True))


def checksum(*modules):
    tensors = [tensor for module in modules for tensor in module.state_dict().values()]
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=10, help="optimizer steps")
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches in one step")
    parser.add_argument("--batch", type=int, default=4, help="sequences in one micro-batch")
    parser.add_argument("--length", type=int, default=64, help="tokens in one sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel(arguments.width, arguments.layers, arguments.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    for iteration in range(1, arguments.iterations + 1):
        optimizer.zero_grad()
        loss_sum = 0.0
        for _ in range(arguments.accumulation):
            text = torch.randint(0, TOKEN_COUNT, (arguments.batch, arguments.length + 1)).to(device)
            logits = model(text[:, :-1])
            loss = loss_of(logits.reshape(-1, TOKEN_COUNT), text[:, 1:].reshape(-1)) / arguments.accumulation
            loss.backward()
            loss_sum += loss.item()
        optimizer.step()
        if iteration % 2 == 0 or iteration == arguments.iterations:
            print(f"iteration {iteration}/{arguments.iterations} loss {loss_sum:.6f}", flush=True)
    print(f"checksum sha256:{checksum(model)}", flush=True)


if __name__ == "__main__":
    main()
