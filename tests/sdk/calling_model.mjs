// Writes a model that calls a tool: one layer of zeros, so each token depends on the one before it alone, and a head that
// knows what comes behind which. Asked anew it calls get_weather twice; after a tool's result it answers.
//   node calling_model.mjs FILE
import { writeFileSync } from 'node:fs';

const bytes = [];
let other = 256;  // bytes that are no visible characters have others, as in GPT-2
for (let byte = 0; byte < 256; ++byte) {
  const visible = (byte >= 33 && byte <= 126) || (byte >= 0xa1 && byte !== 0xad);
  bytes.push(String.fromCodePoint(visible ? byte : other++));
}
const written = (text) => [...Buffer.from(text)].map((byte) => bytes[byte]).join('');

const answers = [
  ['<|call|>', ['I look.', '\n<tool_', 'call>\n{"name": "get_', 'weather", "argum', 'ents": {"city": "Pa', 'ris"}}\n</tool_call>',
    '\n<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>']],
  ['<|answer|>', ['It is ', 'sunny', ' in both.']],
];
const tokens = [...bytes];
const types = bytes.map(() => 1);
const next = new Map();
const add = (text, type) => types.push(type) && tokens.push(text) - 1;
const end = add('<|end|>', 3);
for (const [control, chunks] of answers) {
  let last = add(control, 3);
  for (const chunk of chunks) {
    const id = add(written(chunk), 1);
    next.set(last, id);
    last = id;
  }
  next.set(last, end);
}
const template = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
  + '{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}'
  + "{% if messages[-1].role == 'tool' %}<|answer|>{% else %}<|call|>{% endif %}";

const dim = 288;
const vocab = tokens.length;
if (vocab > dim) throw new Error('the tokens need a wider model');
const matrix = (rows, columns) => ({ shape: [columns, rows], values: new Float32Array(rows * columns) });
const ones = (n) => ({ shape: [n], values: new Float32Array(n).fill(1) });
const embedding = matrix(vocab, dim);
const head = matrix(vocab, dim);
for (let id = 0; id < vocab; ++id) {
  embedding.values[id * dim + id] = 1;
  head.values[(next.get(id) ?? end) * dim + id] = 10;
}
const tensors = { 'token_embd.weight': embedding, 'output_norm.weight': ones(dim), 'output.weight': head };
for (const name of ['attn_q', 'attn_k', 'attn_v', 'attn_output', 'ffn_gate', 'ffn_up', 'ffn_down']) {
  tensors[`blk.0.${name}.weight`] = matrix(dim, dim);
}
for (const name of ['attn_norm', 'ffn_norm']) tensors[`blk.0.${name}.weight`] = ones(dim);

const number = (size, value) => {
  const out = Buffer.alloc(size);
  if (size === 8) out.writeBigUInt64LE(BigInt(value));
  else out.writeUInt32LE(value);
  return out;
};
const u32 = (value) => number(4, value);
const u64 = (value) => number(8, value);
const text = (value) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const float = (value) => {
  const out = Buffer.alloc(4);
  out.writeFloatLE(value);
  return out;
};
const list = (type, values, write) => Buffer.concat([u32(type), u64(values.length), ...values.map(write)]);
const fields = [
  ['general.architecture', 8, text('llama')],
  ['general.name', 8, text('calls')],
  ['llama.context_length', 4, u32(4096)],
  ['llama.embedding_length', 4, u32(dim)],
  ['llama.block_count', 4, u32(1)],
  ['llama.feed_forward_length', 4, u32(dim)],
  ['llama.attention.head_count', 4, u32(9)],
  ['llama.attention.head_count_kv', 4, u32(9)],
  ['llama.attention.layer_norm_rms_epsilon', 6, float(1e-5)],
  ['tokenizer.ggml.model', 8, text('gpt2')],
  ['tokenizer.ggml.pre', 8, text('gpt-2')],
  ['tokenizer.ggml.tokens', 9, list(8, tokens, text)],
  ['tokenizer.ggml.token_type', 9, list(5, types, u32)],
  ['tokenizer.ggml.merges', 9, list(8, [], text)],
  ['tokenizer.ggml.eos_token_id', 4, u32(end)],
  ['tokenizer.chat_template', 8, text(template)],
];
const entries = Object.entries(tensors);
const parts = [Buffer.from('GGUF'), u32(3), u64(entries.length), u64(fields.length)];
for (const [key, type, value] of fields) parts.push(text(key), u32(type), value);
let offset = 0;
for (const [name, { shape, values }] of entries) {
  parts.push(text(name), u32(shape.length), ...shape.map(u64), u32(0), u64(offset));
  offset += Math.ceil(values.byteLength / 32) * 32;
}
const padded = (buffer) => Buffer.concat([buffer, Buffer.alloc((32 - (buffer.length % 32)) % 32)]);
const data = entries.map(([, { values }]) => padded(Buffer.from(values.buffer)));
writeFileSync(process.argv[2], Buffer.concat([padded(Buffer.concat(parts)), ...data]));
