// Markdown as elements. The text comes from a model, so nothing in it becomes HTML: tags are shown as they are
// written, links lead only to web and mail addresses, and pictures are links, as no request may leave the machine.
import { Marked, type Token, type Tokens } from 'marked';
import { Component, type ComponentChildren, type JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { CodeBlock } from './code_block';

const marked = new Marked({ gfm: true });

const kDeepest = 30; // lists in quotes in lists: no writer needs more, and each level costs stack

function depthOf(tokens: Token[]): number {
  return tokens.reduce((deepest, token) => {
    const inner = [...((token as Tokens.Generic).tokens ?? []), ...((token as Tokens.Generic).items ?? [])];
    return Math.max(deepest, inner.length > 0 ? 1 + depthOf(inner) : 1);
  }, 0);
}

// The blocks of a text; a text that cannot be parsed is one paragraph, as is one that nests too deeply.
export function blocksOf(text: string): Token[] {
  try {
    const blocks = marked.lexer(text);
    if (depthOf(blocks) <= kDeepest) return blocks;
  } catch {
    // The parser ran out of stack.
  }
  return [{ type: 'paragraph', raw: text, text, tokens: [{ type: 'text', raw: text, text }] }];
}

const kEntities: Record<string, string> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: '\u00a0',
  copy: '©',
};

export function withoutEntities(text: string): string {
  return text.replace(/&(#x[0-9a-f]{1,6}|#[0-9]{1,7}|[a-z]{2,5});/gi, (whole, name: string) => {
    if (!name.startsWith('#')) return kEntities[name] ?? whole;
    const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

// The address if a click may lead there, or null.
export function safeAddress(address: string): string | null {
  const plain = withoutEntities(address).trim();
  return /^(https?:\/\/|mailto:)/i.test(plain) ? plain : null;
}

function Link({ address, children }: { address: string; children: ComponentChildren }) {
  const safe = safeAddress(address);
  if (!safe) return <>{children}</>;
  return (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function inline(tokens: Token[] | undefined): ComponentChildren {
  return tokens?.map((token) => {
    switch (token.type) {
      case 'strong':
        return <strong>{inline(token.tokens)}</strong>;
      case 'em':
        return <em>{inline(token.tokens)}</em>;
      case 'del':
        return <del>{inline(token.tokens)}</del>;
      case 'codespan':
        return <code>{token.text}</code>;
      case 'br':
        return <br />;
      case 'link':
        return <Link address={token.href}>{inline(token.tokens)}</Link>;
      case 'image':
        return <Link address={token.href}>{token.text || token.href}</Link>;
      case 'checkbox':
        return null;
      case 'html':
        return token.raw;
      case 'escape':
        return token.text;
      default: {
        const { tokens: inner, text, raw } = token as Tokens.Generic;
        return inner ? inline(inner) : withoutEntities((text as string | undefined) ?? raw);
      }
    }
  });
}

function List({ list }: { list: Tokens.List }) {
  const items = list.items.map((item) => (
    <li class={item.task ? 'task' : undefined}>
      {item.task && (item.checked ? '☑ ' : '☐ ')}
      {item.tokens.map(block)}
    </li>
  ));
  return list.ordered ? <ol start={Number(list.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ table }: { table: Tokens.Table }) {
  const side = (i: number) => (table.align[i] ? `to-${table.align[i]}` : undefined);
  return (
    <div class="wide" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>
            {table.header.map((cell, i) => (
              <th class={side(i)}>{inline(cell.tokens)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row) => (
            <tr>
              {row.map((cell, i) => (
                <td class={side(i)}>{inline(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// The page's own headings take the first two levels.
function heading(token: Tokens.Heading): JSX.Element {
  const Level = `h${Math.min(token.depth + 2, 6)}` as 'h3';
  return <Level>{inline(token.tokens)}</Level>;
}

function block(token: Token): ComponentChildren {
  switch (token.type) {
    case 'space':
    case 'def':
    case 'checkbox':
      return null;
    case 'heading':
      return heading(token as Tokens.Heading);
    case 'paragraph':
      return <p>{inline(token.tokens)}</p>;
    case 'code':
      return <CodeBlock language={token.lang ?? ''} text={token.text} />;
    case 'blockquote':
      return <blockquote>{token.tokens?.map(block)}</blockquote>;
    case 'list':
      return <List list={token as Tokens.List} />;
    case 'table':
      return <Table table={token as Tokens.Table} />;
    case 'hr':
      return <hr />;
    case 'html':
      return <p class="as-written">{token.raw.trimEnd()}</p>;
    default:
      return inline([token]);
  }
}

// While a text grows only its last block changes; the others are not rendered again.
class Block extends Component<{ token: Token }> {
  override shouldComponentUpdate(next: { token: Token }): boolean {
    return next.token.raw !== this.props.token.raw;
  }

  override render() {
    return <>{block(this.props.token)}</>;
  }
}

export interface Parsed {
  text: string;
  blocks: Token[];
}

// The blocks of a text that begins with one that was parsed before: all but its last block stay as they are, as what
// follows can only go on with that one.
export function parseMore(before: Parsed, text: string): Parsed {
  const last = before.blocks.findLastIndex((token) => token.type !== 'space');
  const kept = before.blocks.slice(0, Math.max(last, 0));
  const done = kept.map((token) => token.raw).join('');
  if (kept.length === 0 || !text.startsWith(before.text) || !text.startsWith(done))
    return { text, blocks: blocksOf(text) };
  return { text, blocks: [...kept, ...blocksOf(text.slice(done.length))] };
}

export function Markdown({ text, growing }: { text: string; growing?: boolean }) {
  const parsed = useRef<Parsed>({ text: '', blocks: [] });
  // A complete text is parsed as a whole: a link's address may stand below it.
  if (!growing) parsed.current = { text, blocks: blocksOf(text) };
  else if (parsed.current.text !== text) parsed.current = parseMore(parsed.current, text);
  return (
    <div class="markdown">
      {parsed.current.blocks.map((token, i) => (
        <Block key={i} token={token} />
      ))}
    </div>
  );
}
