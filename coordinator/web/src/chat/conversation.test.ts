import { describe, expect, it } from 'vitest';
import {
  serversSampling,
  type Conversation,
  ask,
  askAgain,
  changeTurn,
  editTurn,
  newConversation,
  readConversation,
  requestOf,
  titleOf,
} from './conversation';

function talk(): Conversation {
  let c = ask(newConversation(1), 'first question', 2);
  c = changeTurn(c, c.turns[1]!.id, (t) => ({ ...t, content: 'first answer', reasoning: 'hm', ending: 'stop' }));
  return ask(c, 'second question', 3);
}
const texts = (c: Conversation) => c.turns.map((t) => `${t.role}: ${t.content}`);

describe('a conversation', () => {
  it('asks with all turns but the empty answer', () => {
    const request = requestOf({ ...talk(), system: 'Be brief.' }, 'demo');
    expect(request.model).toBe('demo');
    expect(request.messages).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'first question' },
      { role: 'assistant', content: 'first answer' },
      { role: 'user', content: 'second question' },
    ]);
    expect(request.stream_options).toEqual({ include_usage: true });
  });

  it('sends only the settings that the user made', () => {
    const c = talk();
    expect(Object.keys(requestOf(c, ''))).toEqual(['messages', 'stream', 'stream_options']);
    const set = { ...c, sampling: { ...c.sampling, temperature: 0, seed: 7 } };
    expect(requestOf(set, '')).toMatchObject({ temperature: 0, seed: 7 });
    expect(requestOf(set, '')).not.toHaveProperty('top_p');
  });

  it('leaves out an answer that failed before its first word', () => {
    const c = talk();
    const failed = ask(
      changeTurn(c, c.turns[3]!.id, (t) => ({ ...t, ending: 'error', error: 'x' })),
      'third',
      4,
    );
    expect(requestOf(failed, '').messages.map((m) => m.role)).toEqual(['user', 'assistant', 'user', 'user']);
  });

  it('declares the tools that can be read, and leaves out calls, which have no results', () => {
    const tools = '[{"type":"function","function":{"name":"f"}}]';
    const called = { ...talk(), tools };
    const calls = [{ name: 'f', arguments: '{}' }];
    const silent = changeTurn(called, called.turns[1]!.id, (t) => ({ ...t, content: '', calls }));
    expect(requestOf(silent, '').tools).toEqual(JSON.parse(tools));
    expect(requestOf(silent, '').messages.map((m) => m.role)).toEqual(['user', 'user']);
    expect(readConversation(JSON.stringify(silent))).toEqual(silent);
    for (const none of ['', '[]', '{', '{}']) expect(requestOf({ ...called, tools: none }, '')).not.toHaveProperty('tools');
    expect(newConversation(1, called).tools).toBe(tools);
  });

  it('drops what follows an edited question', () => {
    const c = talk();
    const edited = editTurn(c, c.turns[0]!.id, 'better question', 9);
    expect(texts(edited)).toEqual(['user: better question', 'assistant: ']);
    expect(edited.updated).toBe(9);
    expect(editTurn(c, c.turns[1]!.id, 'an answer cannot be edited', 9)).toBe(c);
  });

  it('asks again from an answer in the middle', () => {
    const c = talk();
    expect(texts(askAgain(c, c.turns[1]!.id, 9))).toEqual(['user: first question', 'assistant: ']);
    expect(askAgain(c, 'nobody', 9)).toBe(c);
  });

  it('is called by its name or its first words', () => {
    expect(titleOf(newConversation(1))).toBe('New conversation');
    expect(titleOf(ask(newConversation(1), '  a \n b ', 1))).toBe('a b');
    expect(titleOf(ask(newConversation(1), 'x'.repeat(99), 1))).toHaveLength(48);
    expect(titleOf({ ...talk(), title: 'named' })).toBe('named');
  });

  it('comes back from its text, and nonsense does not', () => {
    const c = { ...talk(), sampling: { ...talk().sampling, top_k: 40 } };
    expect(readConversation(JSON.stringify(c))).toEqual(c);
    for (const text of [
      '',
      'null',
      '{}',
      '[]',
      '{"id":"a","turns":[{}]}',
      '{"id":"a","turns":[{"id":"b","role":"robot","content":""}]}',
    ]) {
      expect(readConversation(text), text).toBe(null);
    }
    expect(readConversation('{"id":"a","turns":[],"sampling":{"temperature":"hot"}}')).toMatchObject({
      title: '',
      sampling: { temperature: null },
    });
  });
});

it('reads what the server takes by itself', () => {
  const told = { temperature: 0.8, top_p: 0.95, top_k: 40, min_p: 0, repetition_penalty: 1, seed: 5 };
  const none = { temperature: null, top_p: null, top_k: null, min_p: null, max_tokens: null, seed: null };
  expect(serversSampling(told)).toEqual({ ...none, temperature: 0.8, top_p: 0.95, top_k: 40, min_p: 0 });
  for (const other of [null, undefined, {}, { temperature: 'hot' }]) expect(serversSampling(other)).toEqual(none);
});
