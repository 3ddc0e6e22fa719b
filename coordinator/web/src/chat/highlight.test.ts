import { expect, it } from 'vitest';
import { type Kind, piecesOf } from './highlight';

const kindOf = (text: string, language: string, part: string): Kind | undefined =>
  piecesOf(text, language).find((piece) => piece.text.includes(part))?.kind;

it('tells the parts of programs', () => {
  expect(kindOf('def f():\n  return 1  # done', 'python', 'return')).toBe('keyword');
  expect(kindOf('def f():\n  return 1  # done', 'py', '# done')).toBe('comment');
  expect(kindOf('int x = 42;', 'c++', '42')).toBe('number');
  expect(kindOf('{"a": "b"}', 'json', '"b"')).toBe('string');
  expect(kindOf('{"a": "b"}', 'json', '"a"')).toBe('name');
  expect(kindOf('echo "$HOME" | wc', 'sh', 'HOME')).toBeDefined();
  expect(kindOf('-old\n+new\n', 'diff', '+')).toBe('added');
});

it('loses nothing of the text', () => {
  const samples = ['if (a < b) { return `x${1}`; } // end', 'a: [1, "2"]\n', '<b onclick="x">&amp;</b>', ''];
  for (const language of ['js', 'ts', 'yaml', 'html', 'rust', 'go', 'sql', 'toml', 'java', 'css', 'c']) {
    for (const text of samples) {
      expect(
        piecesOf(text, language)
          .map((piece) => piece.text)
          .join(''),
      ).toBe(text);
    }
  }
});

it('leaves what it does not know as it is', () => {
  for (const language of ['', 'brainfuck', 'constructor', 'extend', '__proto__', 'DFS'])
    expect(piecesOf('x = 1', language)).toEqual([{ kind: '', text: 'x = 1' }]);
});
