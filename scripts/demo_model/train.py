#!/usr/bin/env python3
"""Trains the demo model and writes it as a folder of safetensors. See scripts/demo_model/run.

Every batch comes from the seed and its number, and WORK/checkpoint.pt holds all else: a run that is cut goes on where it was and ends
with the weights that an uncut one gives (on the same machine and the same number of threads).
"""
import argparse
import json
import math
import os
import random
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn

import bpe
import corpus

DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, CONTEXT = 128, 8, 4, 2, 32, 448, 1024, 1024
ROPE_BASE, NORM_EPS = 10000.0, 1e-5
BATCH_TOKENS = 4096


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * self.weight


def rotate(x, cos, sin):
    """Rotary embedding of the halves of each head. x: [batch, heads, positions, HEAD_DIM]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn = nn.ModuleDict({"q_proj": linear(DIM, HEADS * HEAD_DIM), "k_proj": linear(DIM, KV_HEADS * HEAD_DIM),
                                        "v_proj": linear(DIM, KV_HEADS * HEAD_DIM), "o_proj": linear(HEADS * HEAD_DIM, DIM)})
        self.mlp = nn.ModuleDict({"gate_proj": linear(DIM, FFN), "up_proj": linear(DIM, FFN), "down_proj": linear(FFN, DIM)})

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        h = self.input_layernorm(x)
        a = self.self_attn
        q = rotate(a["q_proj"](h).view(b, t, HEADS, HEAD_DIM).transpose(1, 2), cos, sin)
        k = rotate(a["k_proj"](h).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2), cos, sin)
        v = a["v_proj"](h).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        k, v = (s.repeat_interleave(HEADS // KV_HEADS, 1) for s in (k, v))
        weights = torch.softmax(q @ k.transpose(2, 3) * HEAD_DIM**-0.5 + mask, -1)
        x = x + a["o_proj"]((weights @ v).transpose(1, 2).reshape(b, t, HEADS * HEAD_DIM))
        h = self.post_attention_layernorm(x)
        m = self.mlp
        return x + m["down_proj"](F.silu(m["gate_proj"](h)) * m["up_proj"](h))


class Model(nn.Module):
    """Llama's forward. Embeddings are not tied to the output: there they would drift together until names are alike."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.embed_tokens.weight)
        for name, p in self.named_parameters():
            if "proj" in name:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * LAYERS) if "o_proj" in name or "down_proj" in name else 1))
        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Begins with two layers that copy (Olsson et al., "In-context Learning and Induction Heads", 2022): the first notes at each
        place what stood before it, the second looks for where its token was noted and takes what stands there. Left to find it, a
        model of this size needs more steps than for all the rest. It's a beginning only: all of it is trained."""
        group, half, noted = HEADS // KV_HEADS, HEAD_DIM // 2, DIM - HEAD_DIM  # dimensions noted.. are kept for the note
        frequency = ROPE_BASE ** (-torch.arange(half) / half)
        projections = torch.linalg.qr(torch.randn(DIM, 2 * HEAD_DIM))[0].t().clone()
        projections[:, 0] = projections[:, noted:] = 0
        weight = self.embed_tokens.weight
        weight[:, noted:] = 0
        weight[:, 0] = 5  # alike in all tokens: what a place is known by
        self.lm_head.weight.copy_(0.05 * weight)
        self.lm_head.weight[:, 0] = 0
        heads = lambda m: m.weight.view(-1, HEAD_DIM, DIM)
        first, second = (self.layers[n].self_attn for n in (0, 1))
        # Fast pairs tell neighbours apart. A key turned back by one place meets the query of the next.
        fast = 2.5 * (torch.arange(half) < half // 4)
        heads(first["q_proj"])[:, :, 0] = torch.cat((fast, 0 * fast))
        heads(first["k_proj"])[:, :, 0] = torch.cat((fast * frequency.cos(), fast * frequency.sin()))
        heads(first["v_proj"])[:] = projections[:HEAD_DIM]
        first["o_proj"].weight[noted:, :HEAD_DIM] = torch.eye(HEAD_DIM)
        # Slow pairs hardly see the distance, and compare.
        slow = (torch.arange(HEAD_DIM) % half >= half // 2).nonzero()[:, 0]
        heads(second["q_proj"])[:, slow] = 4 * projections[slow]
        heads(second["k_proj"])[:, slow, noted + slow] = 4
        heads(second["v_proj"])[:] = projections.view(KV_HEADS, HEAD_DIM, DIM)
        second["o_proj"].weight.view(DIM, KV_HEADS, group, HEAD_DIM)[:] = 2 * projections.view(KV_HEADS, 1, HEAD_DIM, DIM).permute(3, 0, 1, 2)

    def forward(self, ids, targets):
        """The mean loss where targets is not negative. ids, targets: [batch, positions]."""
        t = ids.shape[1]
        angles = torch.arange(t)[:, None] * ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = torch.cat((angles, angles), -1).to(ids.device)
        mask = torch.full((t, t), -math.inf, device=ids.device).triu(1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        wanted = targets >= 0  # the output matrix only where there is something to learn
        return F.cross_entropy(self.lm_head(self.norm(x[wanted])), targets[wanted])


def orthogonal(g):
    """Newton-Schulz towards the nearest orthogonal matrix: Jordan et al., "Muon: An optimizer for hidden layers" (2024)."""
    x = g / (g.norm() + 1e-7)
    if g.shape[0] > g.shape[1]:
        return orthogonal_rows(x.t()).t()
    return orthogonal_rows(x)


def orthogonal_rows(x):
    for _ in range(5):
        s = x @ x.t()
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x


class Muon:
    """Momentum, made orthogonal, for the matrices inside the layers."""

    def __init__(self, params):
        self.params = list(params)
        self.moments = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, lr):
        for p, m in zip(self.params, self.moments):
            m.lerp_(p.grad, 0.05)
            update = orthogonal(p.grad.lerp(m, 0.95))
            p.mul_(1 - lr * 0.1)
            p.add_(update, alpha=-lr * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def encode(tokenizer, messages):
    """Ids, and for each whether it is to be learned: what the assistant says, and its end."""
    start, end, newline = tokenizer.special["<|im_start|>"], tokenizer.special["<|im_end|>"], tokenizer.encode("\n")
    ids, learn = [], []
    for role, text in messages:
        body = tokenizer.encode(text)
        if role == "text":
            return body + [tokenizer.special["<|endoftext|>"]], [True] * (len(body) + 1)
        head = [start] + tokenizer.encode(role) + newline
        ids += head + body + [end] + newline
        learn += [False] * len(head) + [role == "assistant"] * (len(body) + 1) + [False] * len(newline)
    return ids, learn


def repetition(rng):
    """Random tokens said twice, the second time to be learned: keeps what Model.look_back began with, and all tokens apart."""
    run = [rng.randrange(VOCAB - len(bpe.SPECIALS)) for _ in range(rng.randint(4, 48))]
    return run + run, [False] * len(run) + [True] * len(run)


def batches(tokenizer, seed, number):
    """Group `number` of batches: conversations of like length together, about BATCH_TOKENS a batch."""
    rng = random.Random(f"{seed} {number}")
    copies = 0.3 if number < 5 else 0.05
    pool = [repetition(rng) if rng.random() < copies else encode(tokenizer, corpus.conversation(rng)) for _ in range(512)]
    pool.sort(key=lambda c: len(c[0]))
    groups, group = [], []
    for c in pool:
        if len(c[0]) > CONTEXT:
            continue
        if (len(group) + 1) * len(c[0]) > BATCH_TOKENS:
            groups.append(group)
            group = []
        group.append(c)
    groups.append(group)
    rng.shuffle(groups)
    for group in groups:
        longest = max(len(ids) for ids, _ in group)
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        targets = torch.full((len(group), longest), -1)
        for row, (tokens, learn) in enumerate(group):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            targets[row, : len(tokens) - 1] = torch.tensor([t if l else -1 for t, l in zip(tokens[1:], learn[1:])])
        yield ids, targets


def write_folder(model, tokenizer, folder):
    """config.json, tokenizer.json, tokenizer_config.json and model.safetensors, the weights as float16."""
    os.makedirs(folder, exist_ok=True)
    end = tokenizer.special["<|im_end|>"]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": DIM, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": FFN,
              "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rope_theta": ROPE_BASE, "rms_norm_eps": NORM_EPS,
              "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float16", "eos_token_id": end, "bos_token_id": None,
              "_name_or_path": "Gyre demo"}
    files = {"config.json": config, "tokenizer.json": tokenizer.tokenizer_json(), "tokenizer_config.json": tokenizer.tokenizer_config(),
             "generation_config.json": {"eos_token_id": [end, tokenizer.special["<|endoftext|>"]]}}
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=1)
    header, blobs, offset = {}, [], 0
    for name, p in model.state_dict().items():
        norm = p.dim() == 1
        blob = p.detach().cpu().to(torch.float32 if norm else torch.float16).numpy().tobytes()
        header[name if name.startswith("lm_head") else "model." + name] = {"dtype": "F32" if norm else "F16", "shape": list(p.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def learning_rate(step, steps):
    """Warms up, stays for a third, and goes down to nothing."""
    stay = steps // 3
    return min(1.0, (step + 1) / 50) if step < stay else (steps - step) / (steps - stay)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", help="folder for the checkpoint and the model")
    parser.add_argument("--steps", type=int, default=2200, help="optimizer steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (all cores)")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    if args.threads:
        torch.set_num_threads(args.threads)
    elif torch.get_num_threads() < os.cpu_count():
        torch.set_num_threads(os.cpu_count())
    device = "cuda" if torch.cuda.is_available() else "cpu"

    pieces = os.path.join(args.work, "merges.json")
    if not os.path.exists(pieces):
        rng = random.Random(args.seed)
        texts = [text for _ in range(12000) for _, text in corpus.conversation(rng)]
        bpe.save(bpe.Tokenizer.train(texts, VOCAB), pieces)
    tokenizer = bpe.load(pieces)

    torch.manual_seed(args.seed)
    model = Model().to(device)
    matrices = [p for n, p in model.named_parameters() if "proj" in n]
    others = [p for n, p in model.named_parameters() if "proj" not in n]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, lr=0, betas=(0.9, 0.98), weight_decay=0)
    step = group = done = 0
    checkpoint = os.path.join(args.work, "checkpoint.pt")
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, map_location=device)
        if state["steps"] != args.steps or state["seed"] != args.seed:
            parser.error(f"{checkpoint} belongs to --steps {state['steps']} --seed {state['seed']}")
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        for m, s in zip(muon.moments, state["muon"]):
            m.copy_(s)
        step, group, done = state["step"], state["group"], state["done"]
        print(f"goes on at step {step} of {args.steps}", flush=True)

    def save():
        state = {"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.moments, "step": step, "group": group, "done": done,
                 "steps": args.steps, "seed": args.seed}
        torch.save(state, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)

    began, saved, tokens, sums = time.time(), time.time(), 0, []
    while step < args.steps:
        for i, (ids, targets) in enumerate(batches(tokenizer, args.seed, group)):
            if i < done:
                continue
            rate = learning_rate(step, args.steps)
            loss = model(ids.to(device), targets.to(device))
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for g in adam.param_groups:
                g["lr"] = 2e-3 * rate
            adam.step()
            muon.step(0.01 * rate)
            step, done, tokens = step + 1, i + 1, tokens + ids.numel()
            sums.append(loss.item())
            if step % 50 == 0:
                print(f"step {step}/{args.steps}  loss {sum(sums) / len(sums):.4f}  {tokens / (time.time() - began):.0f} tokens/s", flush=True)
                sums = []
            if time.time() - saved > 120:
                save()
                saved = time.time()
            if step >= args.steps:
                break
        else:
            group, done = group + 1, 0
    save()
    write_folder(model, tokenizer, os.path.join(args.work, "gyre-demo"))
    print(f"wrote {args.work}/gyre-demo", flush=True)


if __name__ == "__main__":
    main()
