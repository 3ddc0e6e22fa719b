// Tools with the clients that people have, against a model that calls one twice and answers a tool's result.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { fits } from './openapi.mjs';

const url = process.env.GYRE_CALLS_URL;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });

const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather', parameters: schema } }];
const flat = [{ type: 'function', name: 'get_weather', description: 'The weather', parameters: schema, strict: false }];
const inputs = [{ name: 'get_weather', description: 'The weather', input_schema: schema }];
const question = { role: 'user', content: 'How is the weather in Paris and in Oslo?' };
const cities = ['Paris', 'Oslo'];
const model = 'calls';

test('a chat calls tools, whole and streamed, and takes their results', async () => {
  const body = { model, messages: [question], tools };
  const whole = await openai.chat.completions.create(body);
  fits('ChatCompletion', whole);
  const [choice] = whole.choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, 'I look.');
  assert.deepEqual(choice.message.tool_calls.map((call) => JSON.parse(call.function.arguments).city), cities);
  for (const call of choice.message.tool_calls) assert.match(call.id, /^call_[A-Za-z0-9]{24}$/);

  const stream = openai.chat.completions.stream(body);
  for await (const chunk of stream) fits('ChatCompletionChunk', chunk);
  const streamed = await stream.finalChatCompletion();
  const names = (message) => message.tool_calls.map((call) => [call.type, call.function.name, call.function.arguments]);
  assert.deepEqual(names(streamed.choices[0].message), names(choice.message));
  assert.equal(streamed.choices[0].finish_reason, 'tool_calls');

  const results = choice.message.tool_calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: 'sun' }));
  const answer = await openai.chat.completions.create({ ...body, messages: [question, choice.message, ...results] });
  assert.equal(answer.choices[0].message.content, 'It is sunny in both.');
  assert.equal(answer.choices[0].finish_reason, 'stop');
});

test('the helper of openai that runs tools comes to an end', async () => {
  const asked = [];
  const runner = openai.chat.completions.runTools({
    model,
    messages: [question],
    tools: [{
      type: 'function',
      function: {
        name: 'get_weather', description: 'The weather', parameters: schema, parse: JSON.parse,
        function: ({ city }) => { asked.push(city); return 'sun'; },
      },
    }],
  });
  assert.equal(await runner.finalContent(), 'It is sunny in both.');
  assert.deepEqual(asked, cities);
});

test('choices of tools', async () => {
  const body = { model, messages: [question], tools };
  const one = await openai.chat.completions.create({ ...body, parallel_tool_calls: false });
  assert.equal(one.choices[0].message.tool_calls.length, 1);
  const none = await openai.chat.completions.create({ ...body, tool_choice: 'none' });
  assert.equal(none.choices[0].finish_reason, 'stop');
  const cut = await openai.chat.completions.create({ ...body, max_tokens: 4 });
  assert.equal(cut.choices[0].finish_reason, 'length');
  assert.equal(cut.choices[0].message.tool_calls, undefined);
});

test('a response has items of calls, whole and streamed, and takes their results', async () => {
  const body = { model, input: [question], tools: flat };
  const whole = await openai.responses.create(body);
  const { output_text: _, ...written } = whole;  // the client adds it
  fits('Response', written);
  const calls = whole.output.filter((item) => item.type === 'function_call');
  assert.deepEqual(calls.map((call) => JSON.parse(call.arguments).city), cities);
  assert.equal(whole.output_text, 'I look.');

  const stream = openai.responses.stream(body);
  for await (const event of stream) fits('ResponseEvent', event);
  const streamed = await stream.finalResponse();
  assert.deepEqual(streamed.output.map((item) => [item.type, item.name, item.arguments]),
    whole.output.map((item) => [item.type, item.name, item.arguments]));

  const results = calls.map((call) => ({ type: 'function_call_output', call_id: call.call_id, output: 'sun' }));
  const answer = await openai.responses.create({ ...body, input: [question, ...whole.output, ...results] });
  assert.equal(answer.output_text, 'It is sunny in both.');
});

test('a message has blocks of calls, whole and streamed, and takes their results', async () => {
  const body = { model, max_tokens: 100, messages: [question], tools: inputs };
  const whole = await anthropic.messages.create(body);
  fits('AnthropicMessage', whole);
  assert.equal(whole.stop_reason, 'tool_use');
  assert.equal(whole.content[0].text, 'I look.');
  const calls = whole.content.filter((block) => block.type === 'tool_use');
  assert.deepEqual(calls.map((call) => call.input.city), cities);

  const stream = anthropic.messages.stream(body);
  stream.on('streamEvent', (event) => fits('AnthropicEvent', JSON.parse(JSON.stringify(event))));
  const streamed = await stream.finalMessage();
  const shape = (message) => message.content.map((block) => [block.type, block.text, block.name, block.input]);
  assert.deepEqual(shape(streamed), shape(whole));
  assert.equal(streamed.stop_reason, 'tool_use');

  const results = calls.map((call) => ({ type: 'tool_result', tool_use_id: call.id, content: 'sun' }));
  const answer = await anthropic.messages.create({
    ...body, messages: [question, { role: 'assistant', content: whole.content }, { role: 'user', content: results }],
  });
  assert.equal(answer.content[0].text, 'It is sunny in both.');
  assert.equal(answer.stop_reason, 'end_turn');

  const one = await anthropic.messages.create({ ...body, tool_choice: { type: 'auto', disable_parallel_tool_use: true } });
  assert.equal(one.content.filter((block) => block.type === 'tool_use').length, 1);
});

test("ollama's client calls tools, whole and streamed, and hands back their results", async () => {
  const ollama = new Ollama({ host: url });
  const ask = { model, messages: [question], tools, options: { temperature: 0 } };
  const whole = await ollama.chat(ask);
  fits('OllamaChatPart', whole);
  assert.equal(whole.message.content, 'I look.');
  assert.equal(whole.done_reason, 'stop');
  const cities_of = (calls) => calls.map((call) => [call.function.name, call.function.arguments.city]);
  assert.deepEqual(cities_of(whole.message.tool_calls), cities.map((city) => ['get_weather', city]));
  let content = '';
  const calls = [];
  for await (const part of await ollama.chat({ ...ask, stream: true })) {
    fits('OllamaChatPart', part);
    content += part.message.content;
    calls.push(...part.message.tool_calls ?? []);
  }
  assert.equal(content, whole.message.content);
  assert.deepEqual(cities_of(calls), cities_of(whole.message.tool_calls));
  const results = whole.message.tool_calls.map((call) => ({ role: 'tool', tool_name: call.function.name, content: 'sun' }));
  const answer = await ollama.chat({ ...ask, messages: [question, whole.message, ...results] });
  assert.equal(answer.message.content, 'It is sunny in both.');
  assert.equal(answer.message.tool_calls, undefined);
  assert.ok((await ollama.show({ model: 'calls' })).capabilities.includes('tools'));
});

// What the model would not say of itself: it calls once, with a city that it does not think of.
const rome = { type: 'object', properties: { city: { enum: ['Rome'] }, days: { type: 'integer', minimum: 2, maximum: 2 } },
  required: ['days', 'city'], additionalProperties: false };
const asked = { city: 'Rome', days: 2 };
const other = { type: 'object', properties: {}, additionalProperties: false };

test('a chat calls what it must, by the schema, whole and streamed', async () => {
  const functions = [{ name: 'get_weather', parameters: rome }, { name: 'wait', parameters: other }]
    .map((called) => ({ type: 'function', function: called }));
  const named = { type: 'function', function: { name: 'get_weather' } };
  const allowed = { type: 'allowed_tools', allowed_tools: { mode: 'required', tools: [named] } };
  for (const tool_choice of [named, allowed]) {
    const body = { model, messages: [question], tools: functions, tool_choice, parallel_tool_calls: false };
    const whole = await openai.chat.completions.create(body);
    fits('ChatCompletion', whole);
    const streamed = await openai.chat.completions.stream(body).finalChatCompletion();
    for (const { choices: [{ message, finish_reason }] } of [whole, streamed]) {
      assert.equal(finish_reason, 'tool_calls');
      const calls = message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
      assert.deepEqual(calls, [['get_weather', asked]]);
    }
  }
  const any = await openai.chat.completions.create({ model, messages: [question], tools: functions, tool_choice: 'required' });
  assert.ok(any.choices[0].message.tool_calls.length > 0);
});

test("openai's helper parses calls of strict tools and answers by a schema", async () => {
  const Weather = z.object({ city: z.enum(['Rome']), days: z.literal(2) });
  const tool = zodFunction({ name: 'get_weather', parameters: Weather });
  const strict = await openai.chat.completions.parse({ model, temperature: 0, messages: [question], tools: [tool] });
  assert.equal(strict.choices[0].message.content, 'I look.');
  assert.deepEqual(strict.choices[0].message.tool_calls[0].function.parsed_arguments, asked);
  const response_format = zodResponseFormat(Weather, 'weather');
  const format = await openai.chat.completions.parse({ model, messages: [question], response_format });
  assert.deepEqual(format.choices[0].message.parsed, asked);
  const response = await openai.responses.parse({ model, input: [question], text: { format: zodTextFormat(Weather, 'weather') } });
  assert.deepEqual(response.output_parsed, asked);
  const calling = await openai.responses.parse({
    model, input: [question], tools: [zodResponsesFunction({ name: 'get_weather', parameters: Weather })], tool_choice: 'required',
    parallel_tool_calls: false,
  });
  assert.deepEqual(calling.output.map((item) => [item.type, item.parsed_arguments]), [['function_call', asked]]);
});

test('a response calls what it must', async () => {
  const functions = [{ name: 'get_weather', parameters: rome }, { name: 'wait', parameters: other }]
    .map((called) => ({ type: 'function', strict: true, ...called }));
  const named = { type: 'function', name: 'get_weather' };
  for (const tool_choice of [named, { type: 'allowed_tools', mode: 'required', tools: [named] }]) {
    const body = { model, input: [question], tools: functions, tool_choice, parallel_tool_calls: false };
    const whole = await openai.responses.create(body);
    const { output_text: _, ...written } = whole;
    fits('Response', written);
    const streamed = await openai.responses.stream(body).finalResponse();
    for (const { output } of [whole, streamed]) {
      assert.deepEqual(output.map((item) => [item.type, item.name, JSON.parse(item.arguments)]), [['function_call', 'get_weather', asked]]);
    }
  }
});

test('a message calls what it must', async () => {
  const given = [{ name: 'get_weather', input_schema: rome }, { name: 'wait', input_schema: other }];
  const body = { model, max_tokens: 200, messages: [question], tools: given };
  const tool_choice = { type: 'tool', name: 'get_weather', disable_parallel_tool_use: true };
  const whole = await anthropic.messages.create({ ...body, tool_choice });
  fits('AnthropicMessage', whole);
  const streamed = await anthropic.messages.stream({ ...body, tool_choice }).finalMessage();
  for (const message of [whole, streamed]) {
    assert.equal(message.stop_reason, 'tool_use');
    assert.deepEqual(message.content.map((block) => [block.type, block.name, block.input]), [['tool_use', 'get_weather', asked]]);
  }
  const any = await anthropic.messages.create({ ...body, tool_choice: { type: 'any' } });
  assert.ok(any.content.every((block) => block.type === 'tool_use'));
  const strict = await anthropic.messages.create({ ...body, temperature: 0, tools: [{ ...given[0], strict: true }] });
  assert.deepEqual(strict.content.map((block) => block.text ?? block.input), ['I look.', asked]);
});
