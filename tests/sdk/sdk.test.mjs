// What the clients people already have do with Gyre: chat, completions, streams, errors, aborts, embeddings.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { fits, paths } from './openapi.mjs';

const url = process.env.GYRE_URL;
// Whole answers as they came to the client of OpenAI.
const seen = [];
const openai = new OpenAI({
  baseURL: `${url}/v1`,
  apiKey: 'none',
  maxRetries: 0,
  fetch: async (input, init) => {
    const response = await fetch(input, init);
    if (response.headers.get('content-type') === 'application/json') seen.push(response.clone());
    return response;
  },
});
const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });

const messages = [{ role: 'user', content: 'Tell me a story. Grüße 😀' }];
const greedy = { model: 'demo', temperature: 0, max_tokens: 24 };

async function refused(status, call) {
  await assert.rejects(call, (error) => {
    assert.equal(error.status, status, error.message);
    return true;
  });
}

test('models', async () => {
  const list = await openai.models.list();
  assert.deepEqual(list.data.map((model) => model.id), ['demo']);
  assert.equal((await openai.models.retrieve('demo')).id, 'demo');
  await refused(404, () => openai.models.retrieve('nobody'));
});

test('a chat, whole and streamed, is the same text with the same usage', async () => {
  const whole = await openai.chat.completions.create({ ...greedy, messages });
  fits('ChatCompletion', whole);
  const text = whole.choices[0].message.content;
  assert.ok(text.length > 5);
  const stream = await openai.chat.completions.create({
    ...greedy, messages, stream: true, stream_options: { include_usage: true },
  });
  let streamed = '';
  let usage = null;
  const roles = [];
  let reason = null;
  for await (const chunk of stream) {
    fits('ChatCompletionChunk', chunk);
    if (chunk.usage) usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    if (choice.delta.role) roles.push(choice.delta.role);
    streamed += choice.delta.content ?? '';
    reason = choice.finish_reason ?? reason;
  }
  assert.equal(streamed, text);
  assert.deepEqual(roles, ['assistant']);
  assert.equal(reason, whole.choices[0].finish_reason);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.ok(usage.prompt_tokens_details.cached_tokens > 0);  // the second time
});

test('the stream helper of the SDK collects the same message', async () => {
  const stream = openai.chat.completions.stream({ ...greedy, messages });
  const final = await stream.finalChatCompletion();
  const whole = await openai.chat.completions.create({ ...greedy, messages });
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test('choices, stops, log-probabilities', async () => {
  const many = await openai.chat.completions.create({ ...greedy, messages, temperature: 1, n: 3, seed: 5 });
  assert.deepEqual(many.choices.map((choice) => choice.index), [0, 1, 2]);
  const again = await openai.chat.completions.create({ ...greedy, messages, temperature: 1, n: 3, seed: 5 });
  assert.deepEqual(again.choices, many.choices);
  const stopped = await openai.chat.completions.create({ ...greedy, messages, stop: ['e', 'zzz'] });
  assert.equal(stopped.choices[0].finish_reason, 'stop');
  assert.ok(!stopped.choices[0].message.content.includes('e'));
  const probable = await openai.chat.completions.create({ ...greedy, messages, logprobs: true, top_logprobs: 3 });
  fits('ChatCompletion', probable);
  for (const token of probable.choices[0].logprobs.content) {
    assert.equal(token.top_logprobs.length, 3);
    assert.equal(token.top_logprobs[0].logprob, token.logprob);  // greedy: the best is taken
    assert.ok(token.logprob <= 0);
  }
});

test('completions: text, lists, ids, echo', async () => {
  const one = await openai.completions.create({ ...greedy, prompt: 'Once upon a time' });
  fits('Completion', one);
  const echo = await openai.completions.create({ ...greedy, prompt: 'Once upon a time', echo: true, max_tokens: 4, logprobs: 2 });
  assert.ok(echo.choices[0].text.startsWith('Once upon a time'));
  assert.equal(echo.choices[0].logprobs.token_logprobs[0], null);
  const two = await openai.completions.create({ ...greedy, prompt: ['Once upon a time', 'The end'] });
  assert.equal(two.choices[0].text, one.choices[0].text);
  assert.equal(two.choices.length, 2);
  const ids = await openai.completions.create({ ...greedy, prompt: [1, 2, 3], max_tokens: 2 });
  assert.equal(ids.usage.prompt_tokens, 3);
  let streamed = '';
  for await (const chunk of await openai.completions.create({ ...greedy, prompt: 'Once upon a time', stream: true })) {
    streamed += chunk.choices[0]?.text ?? '';
  }
  assert.equal(streamed, one.choices[0].text);
});

test('responses, whole and streamed', async () => {
  const ask = { model: 'demo', temperature: 0, max_output_tokens: 16, input: 'Tell me a story.', store: false };
  const whole = await openai.responses.create(ask);
  const { output_text: said, ...sent } = whole;  // the SDK puts the text together
  fits('Response', sent);
  let streamed = '';
  let last = -1;
  const kinds = [];
  for await (const event of await openai.responses.create({ ...ask, stream: true })) {
    fits('ResponseEvent', event);
    assert.equal(event.sequence_number, ++last);
    kinds.push(event.type);
    if (event.type === 'response.output_text.delta') streamed += event.delta;
  }
  assert.equal(streamed, said);
  assert.equal(kinds[0], 'response.created');
  assert.match(kinds.at(-1), /^response\.(completed|incomplete)$/);
});

test('a conversation goes on from a response that the server keeps', async () => {
  const ask = { model: 'demo', temperature: 0, max_output_tokens: 16 };
  const first = await openai.responses.create({ ...ask, input: 'Tell me a story. '.repeat(20) });
  assert.equal(first.store, true);
  const second = await openai.responses.create({ ...ask, input: 'And then?', previous_response_id: first.id });
  assert.equal(second.previous_response_id, first.id);
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  // All whole blocks of the first prompt come from the prefix cache.
  assert.ok(second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens - 32);
  const { output_text: said, ...kept } = await openai.responses.retrieve(first.id);
  fits('Response', kept);
  assert.equal(said, first.output_text);
  const items = await openai.responses.inputItems.list(first.id);
  assert.equal(items.data[0].role, 'user');
  await openai.responses.delete(first.id);
  await refused(404, () => openai.responses.retrieve(first.id));
  await assert.rejects(() => openai.responses.create({ ...ask, input: 'Hi', previous_response_id: first.id }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.code, 'previous_response_not_found');
    assert.equal(error.param, 'previous_response_id');
    return true;
  });
  const unkept = await openai.responses.create({ ...ask, input: 'Hi', store: false });
  assert.equal(unkept.store, false);
  await refused(404, () => openai.responses.retrieve(unkept.id));
});

test('embeddings', async () => {
  const one = await openai.embeddings.create({ model: 'demo', input: 'A cat', encoding_format: 'float' });
  fits('EmbeddingList', one);
  const vector = one.data[0].embedding;
  assert.ok(Math.abs(vector.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);
  const packed = await openai.embeddings.create({ model: 'demo', input: ['A cat', 'A dog'] });  // the SDK asks for base64
  assert.equal(packed.data.length, 2);
  for (let i = 0; i < vector.length; ++i) assert.ok(Math.abs(packed.data[0].embedding[i] - vector[i]) < 1e-6);
  const short = await openai.embeddings.create({ model: 'demo', input: 'A cat', dimensions: 8 });
  assert.equal(short.data[0].embedding.length, 8);
});

test('errors have their classes', async () => {
  await refused(404, () => openai.chat.completions.create({ ...greedy, model: 'nobody', messages }));
  await refused(400, () => openai.chat.completions.create({ ...greedy, messages, temperature: -1 }));
  await refused(400, () => openai.chat.completions.create({ ...greedy, messages, n: 0 }));
  await refused(400, () => openai.chat.completions.create({ ...greedy, messages: 'none' }));
  await refused(422, () => openai.chat.completions.create({
    ...greedy, messages, tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
  }));
  await refused(400, () => openai.completions.create({ ...greedy, prompt: 'word '.repeat(5000) }));
  for (const response of seen.slice(-6)) {
    const body = await response.json();
    fits('Error', body);
  }
});

async function sequences() {
  return (await fetch(`${url}/slots`)).json();
}

test('a client that aborts ends its request', async () => {
  const stream = await openai.chat.completions.create({ ...greedy, max_tokens: 900, messages, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) break;
  }
  stream.controller.abort();
  for (let i = 0; i < 100; ++i) {
    if ((await sequences()).length === 0) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail('the request goes on');
});

test("Anthropic's client: messages, streams, counting, errors", async () => {
  const ask = { model: 'demo', max_tokens: 16, temperature: 0, messages };
  const whole = await anthropic.messages.create(ask);
  fits('AnthropicMessage', whole);
  const text = whole.content[0].text;
  const stream = anthropic.messages.stream(ask);
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, text);
  assert.equal(final.stop_reason, whole.stop_reason);
  const counted = await anthropic.messages.countTokens({ model: 'demo', messages });
  assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
  await refused(404, () => anthropic.messages.create({ ...ask, model: 'nobody' }));
  await refused(400, () => anthropic.messages.create({ model: 'demo', messages }));
});

test("ollama's client: chats, prompts, vectors, the model, errors", async () => {
  const ollama = new Ollama({ host: url });
  const ask = { model: 'demo', messages, options: { temperature: 0, num_predict: 12 } };
  const whole = await ollama.chat(ask);
  fits('OllamaChatPart', whole);
  let streamed = '';
  let last = null;
  for await (const part of await ollama.chat({ ...ask, stream: true })) {
    fits('OllamaChatPart', part);
    streamed += part.message.content;
    last = part;
  }
  assert.equal(streamed, whole.message.content);
  assert.ok(last.done);
  assert.equal(last.eval_count, whole.eval_count);
  const said = await openai.chat.completions.create({ ...greedy, max_tokens: 12, messages });
  assert.equal(said.choices[0].message.content, whole.message.content);
  const first = await ollama.generate({ model: 'demo', prompt: 'Hello', options: ask.options });
  fits('OllamaGeneratePart', first);
  const next = await ollama.generate({ model: 'demo', prompt: 'And then?', context: first.context, options: ask.options });
  assert.ok(next.prompt_eval_count > first.context.length);
  fits('OllamaTags', await ollama.list());
  fits('OllamaTags', await ollama.ps());
  fits('OllamaModel', await ollama.show({ model: 'demo' }));
  const two = await ollama.embed({ model: 'demo', input: ['A cat', 'A dog'] });
  fits('OllamaEmbeddings', two);
  assert.deepEqual((await ollama.embeddings({ model: 'demo', prompt: 'A cat' })).embedding, two.embeddings[0]);
  await assert.rejects(() => ollama.chat({ ...ask, model: 'nobody' }), (error) => error.status_code === 404 && /nobody/.test(error.message));
  const object = await ollama.chat({ ...ask, format: 'json' });
  assert.match(object.message.content, /^\s*\{/);
  const chosen = await ollama.chat({ ...ask, options: { temperature: 0 }, format: { enum: ['yes', 'no'] } });
  assert.ok(['yes', 'no'].includes(JSON.parse(chosen.message.content)));
  await assert.rejects(() => ollama.chat({ ...ask, format: 'xml' }), (error) => error.status_code === 400 || error.status_code === 422);
});

// Without a client's help.
async function call(path, body) {
  const options = body && { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  return fetch(url + path, options);
}
async function json(schema, path, body, status = 200) {
  const response = await call(path, body);
  assert.equal(response.status, status, path);
  const value = await response.json();
  fits(schema, value);
  return value;
}
async function events(schema, path, body) {
  const text = await (await call(path, body)).text();
  const values = text.split('\n\n').filter(Boolean).map((event) => JSON.parse(event.replace(/^event: .*\n/, '').slice(6)));
  for (const value of values) fits(schema, value);
  return values;
}

test("Anthropic's answers fit the description", async () => {
  const ask = { model: 'demo', max_tokens: 16, temperature: 0, messages };
  const whole = await json('AnthropicMessage', '/v1/messages', ask);
  const kinds = (await events('AnthropicEvent', '/v1/messages', { ...ask, stream: true })).map((event) => event.type);
  assert.equal(kinds[0], 'message_start');
  assert.equal(kinds.at(-1), 'message_stop');
  assert.equal(whole.stop_reason, 'max_tokens');
  await json('CountTokens', '/v1/messages/count_tokens', { model: 'demo', messages });
  await json('AnthropicError', '/v1/messages', { model: 'demo' }, 400);
  await json('AnthropicError', '/v1/messages', { ...ask, temperature: -1 }, 400);
});

test("llama.cpp's answers fit the description", async () => {
  const ask = { prompt: 'Once upon a time', n_predict: 12, temperature: 0, n_probs: 2 };
  const whole = await json('LlamaCompletion', '/completion', { ...ask, return_tokens: true });
  const chunks = await events('LlamaEvent', '/completion', { ...ask, stream: true, timings_per_token: true });
  assert.equal(chunks.map((chunk) => chunk.content).join(''), whole.content);
  await json('Error', '/completion', { ...ask, mirostat: 2 }, 400);
  const { tokens } = await json('TokenList', '/tokenize', { content: 'Grüße 😀' });
  assert.equal((await json('Content', '/detokenize', { tokens })).content, 'Grüße 😀');
  await json('TokenList', '/tokenize', { content: 'Grüße 😀', with_pieces: true });
  await json('Prompt', '/apply-template', { messages });
  const props = await json('Props', '/props');
  assert.equal(props.default_generation_settings.params.temperature, 0.8);
  // While something runs.
  const stream = await call('/completion', { ...ask, n_predict: 500, ignore_eos: true, stream: true });
  const reader = stream.body.getReader();
  await reader.read();
  let slots = [];
  for (let i = 0; i < 100 && slots.length === 0; ++i) slots = await json('Slots', '/slots');
  assert.equal(slots.length, 1);
  await reader.cancel();
});

test("the routes of Gyre's own fit the description", async () => {
  await json('Health', '/health');
  await json('Ready', '/ready');
  const cluster = await json('Cluster', '/v1/cluster');
  const reader = (await call('/v1/cluster/events')).body.getReader();
  const first = new TextDecoder().decode((await reader.read()).value);
  fits('Cluster', JSON.parse(first.match(/^event: status\ndata: (.*)\n\n/)[1]));
  await reader.cancel();
  const { ranges } = cluster.plan;
  await json('ClusterChange', '/v1/cluster/resize', { ranges, dry_run: true });
  await json('Error', '/v1/cluster/resize', { ranges: 'nonsense', dry_run: true }, 400);
  await json('Error', '/v1/cluster/drain', { worker: 'nobody', dry_run: true }, 404);
  await json('Trace', '/v1/cluster/trace?seconds=1');
  await json('Error', '/v1/cluster/trace?seconds=0', undefined, 400);
  const metrics = await call('/metrics');
  assert.match(metrics.headers.get('content-type'), /^text\/plain; version=0.0.4/);
  assert.match(await metrics.text(), /^gyre_tokens_generated_total \d+$/m);
});

test('a file of requests becomes a batch with their answers', async () => {
  const line = (id, body) =>
    JSON.stringify({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body: { ...greedy, messages, ...body } });
  const file = await openai.files.create({
    file: new File([`${line('a', {})}\n${line('b', { temperature: -1 })}\n`], 'in.jsonl'),
    purpose: 'batch',
  });
  fits('File', file);
  let batch = await openai.batches.create({
    input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h', metadata: { of: 'a test' },
  });
  fits('Batch', batch);
  while (batch.status === 'in_progress') {
    await new Promise((resolve) => { setTimeout(resolve, 50); });
    batch = await openai.batches.retrieve(batch.id);
  }
  fits('Batch', batch);
  assert.deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 });
  const lines = async (id) => (await (await openai.files.content(id)).text()).trim().split('\n').map(JSON.parse);
  const [answer] = await lines(batch.output_file_id);
  assert.equal(answer.custom_id, 'a');
  fits('ChatCompletion', answer.response.body);
  const alone = await openai.chat.completions.create({ ...greedy, messages });
  assert.equal(answer.response.body.choices[0].message.content, alone.choices[0].message.content);
  const [error] = await lines(batch.error_file_id);
  assert.equal(error.response.status_code, 400);
  fits('Error', error.response.body);
  const list = await openai.batches.list();
  fits('BatchList', { object: list.object ?? 'list', data: list.data, has_more: list.has_more });
  await refused(409, () => openai.batches.cancel(batch.id));
  const deleted = await openai.files.delete(file.id);
  fits('DeletedFile', deleted);
  await refused(404, () => openai.files.retrieve(file.id));
});

test('every path of the description answers', async () => {
  for (const path of paths) {
    const response = await fetch(url + path.replace('{id}', 'demo'), { method: 'OPTIONS' });
    assert.notEqual(response.status, 404, path);
    await response.arrayBuffer();
  }
});

after(() => assert.ok(seen.length > 20));
