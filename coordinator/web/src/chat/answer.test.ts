import { expect, it } from 'vitest';
import { AnswerReader } from './answer';

const chunk = (delta: object, finish: string | null = null) =>
  JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] });

it('adds up text, reasoning and usage', () => {
  const reader = new AnswerReader(1000);
  expect(reader.stats()).toBe(null);
  reader.take(chunk({ role: 'assistant', content: '' }), 1100);
  reader.take(chunk({ reasoning_content: 'hm' }), 1200);
  reader.take(chunk({ content: 'He' }), 1300);
  reader.take(chunk({ content: 'llo' }), 1700);
  expect(reader.stats()).toMatchObject({ answerTokens: 3, firstTokenMs: 200, tokensPerSecond: 4 });
  reader.take(chunk({}, 'length'), 1701);
  const usage = { prompt_tokens: 20, completion_tokens: 6, prompt_tokens_details: { cached_tokens: 16 } };
  expect(reader.take(JSON.stringify({ choices: [], usage }), 1702)).toBe(true);
  expect(reader.take('[DONE]', 1703)).toBe(false);
  expect(reader).toMatchObject({ content: 'Hello', reasoning: 'hm', ending: 'length' });
  expect(reader.stats()).toEqual({
    promptTokens: 20,
    cachedTokens: 16,
    answerTokens: 6,
    firstTokenMs: 200,
    tokensPerSecond: 10,
  });
});

it('shows no rate for a single token', () => {
  const reader = new AnswerReader(0);
  reader.take(chunk({ content: 'x' }), 5);
  expect(reader.stats()!.tokensPerSecond).toBe(null);
});

it('throws what the server reports in the stream', () => {
  const reader = new AnswerReader(0);
  expect(() => reader.take('{"error":{"message":"the ring broke","type":"server_error"}}', 1)).toThrow(
    'The ring broke.',
  );
  expect(() => reader.take('{', 1)).toThrow('not JSON');
});

it('puts calls of tools together', () => {
  const reader = new AnswerReader(0);
  reader.take(chunk({ content: 'I look.' }), 1);
  const begun = { index: 0, id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '' } };
  reader.take(chunk({ tool_calls: [begun] }), 2);
  reader.take(chunk({ tool_calls: [{ index: 0, function: { arguments: '{"city":"Oslo"}' } }] }), 3);
  reader.take(chunk({}, 'tool_calls'), 4);
  expect(reader).toMatchObject({
    content: 'I look.',
    calls: [{ name: 'get_weather', arguments: '{"city":"Oslo"}' }],
    ending: 'stop',
  });
  expect(reader.stats()).toMatchObject({ answerTokens: 3 });
});
