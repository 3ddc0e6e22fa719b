import { expect, it } from 'vitest';
import { argumentsInLines, readCalls, readTools, withParts } from './tools';

it('puts calls together from their parts', () => {
  let calls = withParts([], [{ index: 0, function: { name: 'f', arguments: '' } }]);
  calls = withParts(calls, [{ index: 0, function: { arguments: '{"a"' } }]);
  calls = withParts(calls, [{ index: 0, function: { arguments: ':1}' } }, { index: 1, function: { name: 'g' } }]);
  expect(calls).toEqual([
    { name: 'f', arguments: '{"a":1}' },
    { name: 'g', arguments: '' },
  ]);
  // Servers that give no numbers; and parts of calls that never began.
  calls = withParts([], [{ function: { name: 'f', arguments: '{' } }, { function: { arguments: '}' } }]);
  calls = withParts(calls, [{ function: { name: 'g' } }, { index: 7, function: { arguments: 'x' } }]);
  expect(calls).toEqual([
    { name: 'f', arguments: '{}' },
    { name: 'g', arguments: '' },
  ]);
  expect(withParts([], [{ function: { arguments: 'x' } }, {}])).toEqual([]);
});

it('shows arguments in lines, and broken ones as they are', () => {
  expect(argumentsInLines({ name: 'f', arguments: '{"a":[1]}' })).toBe('{\n  "a": [\n    1\n  ]\n}');
  expect(argumentsInLines({ name: 'f', arguments: '' })).toBe('{}');
  expect(argumentsInLines({ name: 'f', arguments: '{"a": "<b>' })).toBe('{"a": "<b>');
});

it('reads the tools that were written, and says what is wrong', () => {
  expect(readTools(' ')).toEqual([]);
  expect(readTools('[{"type": "function"}]')).toEqual([{ type: 'function' }]);
  expect(readTools('{"type": "function"}')).toMatch(/must be a list/);
  expect(readTools('[')).toMatch(/^The tools are not JSON: .+\.$/);
});

it('reads the calls that were kept', () => {
  expect(readCalls([{ name: 'f', arguments: '{}', id: 'x' }, null, { name: 'g' }])).toEqual([
    { name: 'f', arguments: '{}' },
  ]);
  expect(readCalls('f')).toEqual([]);
});
