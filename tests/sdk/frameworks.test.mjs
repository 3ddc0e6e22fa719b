// Tools and structured output with the frameworks that people build on: Vercel's AI SDK and LangChain.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool as langchainTool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';

// A model that calls get_weather for Paris and Oslo and says that it is sunny, unless it must say something else.
const url = process.env.GYRE_CALLS_URL;
const prompt = 'How is the weather in Paris and in Oslo?';
const cities = ['Paris', 'Oslo'];
const Rome = z.object({ city: z.enum(['Rome']), days: z.literal(2) });
const rome = { city: 'Rome', days: 2 };

const provider = createOpenAICompatible({
  name: 'gyre', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true, includeUsage: true,
});
const model = provider.chatModel('calls');
const anyCity = z.object({ city: z.string() });

test('ai: the model calls tools, and the answer comes behind their results', async () => {
  const asked = [];
  const execute = ({ city }) => { asked.push(city); return 'sun'; };
  const tools = { get_weather: tool({ description: 'The weather', inputSchema: anyCity, execute }) };
  const whole = await generateText({ model, prompt, tools, stopWhen: stepCountIs(3), maxRetries: 0 });
  assert.equal(whole.text, 'It is sunny in both.');
  assert.deepEqual(asked, cities);
  assert.equal(whole.steps[0].finishReason, 'tool-calls');
  asked.length = 0;
  const stream = streamText({ model, prompt, tools, stopWhen: stepCountIs(3), maxRetries: 0 });
  let said = '';
  for await (const text of stream.textStream) said += text;
  assert.equal(said, 'I look.It is sunny in both.');
  assert.deepEqual(asked, cities);
  assert.ok((await stream.totalUsage).outputTokens > 0);
});

test('ai: a call that must come obeys the schema', async () => {
  const tools = { get_weather: tool({ description: 'The weather', inputSchema: Rome }), wait: tool({ inputSchema: z.object({}) }) };
  const toolChoice = { type: 'tool', toolName: 'get_weather' };
  const whole = await generateText({ model, prompt, tools, toolChoice, maxRetries: 0 });
  assert.deepEqual(whole.toolCalls.map((call) => [call.toolName, call.input, call.invalid ?? false])[0], ['get_weather', rome, false]);
  const stream = streamText({ model, prompt, tools, toolChoice, maxRetries: 0 });
  assert.deepEqual((await stream.toolCalls)[0].input, rome);
  const any = await generateText({ model, prompt, tools, toolChoice: 'required', maxRetries: 0 });
  assert.ok(any.toolCalls.length > 0);
});

test('ai: objects, whole and streamed', async () => {
  const whole = await generateObject({ model, prompt, schema: Rome, maxRetries: 0 });
  assert.deepEqual(whole.object, rome);
  const stream = streamObject({ model, prompt, schema: Rome, maxRetries: 0 });
  let parts = 0;
  for await (const _ of stream.partialObjectStream) ++parts;
  assert.ok(parts > 0);
  assert.deepEqual(await stream.object, rome);
  const chosen = await generateObject({ model, prompt, output: 'enum', enum: ['sun', 'rain'], maxRetries: 0 });
  assert.ok(['sun', 'rain'].includes(chosen.object));
});

const configuration = { baseURL: `${url}/v1` };
const chat = (fields = {}) => new ChatOpenAI({ model: 'calls', apiKey: 'none', maxRetries: 0, configuration, ...fields });
const weather = langchainTool(async () => 'sun', { name: 'get_weather', description: 'The weather', schema: anyCity });
const romanWeather = langchainTool(async () => 'sun', { name: 'get_weather', description: 'The weather', schema: Rome });
const wait = langchainTool(async () => 'done', { name: 'wait', description: 'Waits', schema: z.object({}) });

test('langchain: tools are called, and the answer comes behind their results', async () => {
  const bound = chat().bindTools([weather]);
  const question = new HumanMessage(prompt);
  const whole = await bound.invoke([question]);
  assert.deepEqual(whole.tool_calls.map((call) => call.args.city), cities);
  const results = whole.tool_calls.map((call) => new ToolMessage({ content: 'sun', tool_call_id: call.id }));
  assert.equal((await bound.invoke([question, whole, ...results])).text, 'It is sunny in both.');
  let streamed;
  for await (const chunk of await bound.stream([question])) streamed = streamed ? streamed.concat(chunk) : chunk;
  assert.deepEqual(streamed.tool_calls.map((call) => call.args.city), cities);
});

test('langchain: a call that must come, and one of a strict tool, obey the schema', async () => {
  for (const options of [{ tool_choice: 'get_weather' }, { tool_choice: 'get_weather', parallel_tool_calls: false }, { strict: true }]) {
    const bound = chat().bindTools([romanWeather, wait], options);
    const whole = await bound.invoke(prompt);
    assert.deepEqual(whole.tool_calls[0].args, rome);
    let streamed;
    for await (const chunk of await bound.stream(prompt)) streamed = streamed ? streamed.concat(chunk) : chunk;
    assert.deepEqual(streamed.tool_calls[0].args, rome);
  }
  for (const tool_choice of ['any', 'required']) {
    assert.ok((await chat().bindTools([romanWeather, wait], { tool_choice }).invoke(prompt)).tool_calls.length > 0);
  }
});

test('langchain: structured output by each method, whole and streamed', async () => {
  for (const method of ['jsonSchema', 'functionCalling']) {
    const structured = chat().withStructuredOutput(Rome, { method, name: 'weather' });
    assert.deepEqual(await structured.invoke(prompt), rome, method);
    let last;
    for await (const part of await structured.stream(prompt)) last = part;
    assert.deepEqual(last, rome, method);
  }
  const responses = chat({ useResponsesApi: true }).withStructuredOutput(Rome, { method: 'jsonSchema', name: 'weather' });
  assert.deepEqual(await responses.invoke(prompt), rome);
});
