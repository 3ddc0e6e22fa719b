import { afterEach, expect, it, vi } from 'vitest';
import { ApiError, apiKey, explain, getJson, keepApiKey, keyNeeded, postJson } from './api';

function answer(status: number, body: string) {
  const fetched = vi.fn(async (_path: string, _init: RequestInit) => new Response(body, { status }));
  vi.stubGlobal('fetch', fetched);
  return fetched;
}

const failure = (work: Promise<unknown>) => work.then(() => 'no error', explain);

afterEach(() => {
  vi.unstubAllGlobals();
  keepApiKey('');
});

it('says what the server says, as a sentence', async () => {
  answer(422, '{"error":{"message":"top_p is 2; it must lie from 0 to 1"}}');
  expect(await failure(getJson('/x'))).toBe('Top_p is 2; it must lie from 0 to 1.');
  answer(400, '{"error":"plain words!"}');
  expect(await failure(getJson('/x'))).toBe('Plain words!');
});

it('explains an answer that explains nothing', async () => {
  for (const [status, words] of [
    [403, 'admin'],
    [429, 'Too many'],
    [503, 'not ready'],
    [418, '418'],
  ] as const) {
    answer(status, '<html>');
    expect(await failure(getJson('/x')), `${status}`).toContain(words);
  }
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')));
  expect(await failure(getJson('/x'))).toBe('The server cannot be reached. Is gyre still running?');
});

it('asks for a key after a 401 and sends it from then on', async () => {
  answer(401, '{}');
  await failure(getJson('/x'));
  expect(keyNeeded.get()).toBe(true);
  keepApiKey('secret');
  expect(keyNeeded.get()).toBe(false);
  expect(apiKey.get()).toBe('secret');
  const fetched = answer(200, '{"a":1}');
  expect(await postJson('/x', { b: 2 })).toEqual({ a: 1 });
  const init = fetched.mock.calls[0]![1];
  expect(new Headers(init.headers).get('authorization')).toBe('Bearer secret');
  expect(init).toMatchObject({ method: 'POST', body: '{"b":2}' });
});

it('passes an abort on as it is', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new DOMException('stop', 'AbortError')));
  const error = await getJson('/x').catch((e: unknown) => e);
  expect(error).toBeInstanceOf(DOMException);
  expect(error).not.toBeInstanceOf(ApiError);
});
