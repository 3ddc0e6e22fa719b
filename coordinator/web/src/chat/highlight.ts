// The parts of a program's text, by Prism. Pure: nothing of it becomes HTML here.
import './prism_settings';
import Prism from 'prismjs';
import 'prismjs/components/prism-bash';
import 'prismjs/components/prism-c';
import 'prismjs/components/prism-cpp';
import 'prismjs/components/prism-diff';
import 'prismjs/components/prism-go';
import 'prismjs/components/prism-java';
import 'prismjs/components/prism-json';
import 'prismjs/components/prism-python';
import 'prismjs/components/prism-rust';
import 'prismjs/components/prism-sql';
import 'prismjs/components/prism-toml';
import 'prismjs/components/prism-typescript';
import 'prismjs/components/prism-yaml';

export type Kind = 'comment' | 'keyword' | 'string' | 'number' | 'name' | 'added' | 'removed' | '';

export interface Piece {
  kind: Kind;
  text: string;
}

const kLongest = 60000; // longer texts stay plain: they would take longer than a frame

const kLanguages: Record<string, string> = {
  sh: 'bash',
  shell: 'bash',
  zsh: 'bash',
  console: 'bash',
  'c++': 'cpp',
  cc: 'cpp',
  h: 'cpp',
  hpp: 'cpp',
  patch: 'diff',
  golang: 'go',
  js: 'javascript',
  jsx: 'javascript',
  mjs: 'javascript',
  ts: 'typescript',
  tsx: 'typescript',
  py: 'python',
  python3: 'python',
  rs: 'rust',
  yml: 'yaml',
  xml: 'markup',
};

const kKinds: Record<string, Kind> = {
  comment: 'comment',
  prolog: 'comment',
  doctype: 'comment',
  cdata: 'comment',
  keyword: 'keyword',
  boolean: 'keyword',
  null: 'keyword',
  important: 'keyword',
  atrule: 'keyword',
  directive: 'keyword',
  tag: 'keyword',
  string: 'string',
  char: 'string',
  'template-string': 'string',
  'triple-quoted-string': 'string',
  regex: 'string',
  url: 'string',
  'attr-value': 'string',
  number: 'number',
  unit: 'number',
  function: 'name',
  builtin: 'name',
  'class-name': 'name',
  'attr-name': 'name',
  property: 'name',
  key: 'name',
  selector: 'name',
  decorator: 'name',
  annotation: 'name',
  macro: 'name',
  variable: 'name',
  table: 'name',
  'inserted-sign': 'added',
  inserted: 'added',
  'deleted-sign': 'removed',
  deleted: 'removed',
};

// The pieces of `text`, which together are it; one piece without a kind where the language is not known.
export function piecesOf(text: string, language: string): Piece[] {
  const name = language.toLowerCase();
  const known = kLanguages[name] ?? name;
  const grammar = Object.hasOwn(Prism.languages, known) ? Prism.languages[known] : undefined;
  if (typeof grammar !== 'object' || text.length > kLongest) return [{ kind: '', text }];
  const pieces: Piece[] = [];
  const add = (tokens: Prism.TokenStream, outer: Kind): void => {
    if (typeof tokens === 'string') {
      const last = pieces.at(-1);
      if (last && last.kind === outer) last.text += tokens;
      else if (tokens) pieces.push({ kind: outer, text: tokens });
      return;
    }
    if (Array.isArray(tokens)) {
      for (const token of tokens) add(token, outer);
      return;
    }
    add(tokens.content, kKinds[tokens.type] ?? outer);
  };
  add(Prism.tokenize(text, grammar), '');
  return pieces;
}
