import { render } from 'preact-render-to-string';
import { describe, expect, it } from 'vitest';
import { Markdown, type Parsed, blocksOf, parseMore, safeAddress, withoutEntities } from './markdown';

const html = (text: string) => render(<Markdown text={text} />);

describe('Markdown', () => {
  it('renders what answers are made of', () => {
    expect(html('A **bold** and *slanted* `word`.')).toContain(
      '<p>A <strong>bold</strong> and <em>slanted</em> <code>word</code>.</p>',
    );
    expect(html('# Title')).toContain('<h3>Title</h3>');
    expect(html('3. three\n4. four')).toContain('<ol start="3"><li>three</li><li>four</li></ol>');
    expect(html('- [x] done\n- [ ] open')).toMatch(/☑ .*done.*☐ .*open/);
    expect(html('> said')).toContain('<blockquote><p>said</p></blockquote>');
    expect(html('| a | b |\n|:--|--:|\n| 1 | 2 |')).toContain('<td class="to-right">2</td>');
    expect(html('~~gone~~  \nnext\n\n---')).toMatch(/<del>gone<\/del><br\/?>next.*<hr\/?>/s);
  });

  it('renders code as it is, also before its fence is closed', () => {
    const open = html('```cpp\na < b && c;\n');
    expect(open).toContain('<code>a &lt; b &amp;&amp; c;');
    expect(open).toContain('Code in cpp');
  });

  it('makes no elements of HTML in the text', () => {
    for (const text of [
      '<script>alert(1)</script>',
      'x <img src=x onerror=alert(1)> y',
      '<div onclick="alert(1)">\n\n**b**\n\n</div>',
      '`<b>`',
      '**<svg onload=alert(1)>**',
      '- <iframe src="https://evil.example">',
      '| <b>x</b> |\n|--|\n| <style>*{}</style> |',
    ]) {
      expect(html(text), text).not.toMatch(/<(script|img|div on|svg on|iframe|style|b>)/i);
    }
    expect(html('x <b onclick="a()">y</b>')).toContain('&lt;b onclick=&quot;a()&quot;>y&lt;/b>');
  });

  it('links only to web and mail addresses, and loads no pictures', () => {
    expect(html('[a](https://example.org/?a=1&b=2)')).toContain(
      '<a href="https://example.org/?a=1&amp;b=2" target="_blank" rel="noopener noreferrer nofollow">a</a>',
    );
    for (const address of [
      'javascript:alert(1)',
      'JaVaScript:alert(1)',
      'data:text/html,x',
      '&#106;avascript:alert(1)',
      'vbscript:x',
      '/v1/cluster/drain',
    ]) {
      expect(safeAddress(address), address).toBe(null);
      expect(html(`[text](${address})`), address).not.toContain('<a ');
    }
    const picture = html('![a cat](https://evil.example/cat.png)');
    expect(picture).not.toContain('<img');
    expect(picture).toContain('a cat');
  });

  it('shows characters that the text names', () => {
    expect(html('a &amp; b &lt;c&gt; &#233; &unknown;')).toContain('<p>a &amp; b &lt;c> é &amp;unknown;</p>');
    expect(withoutEntities('&#0; &#x110000;')).toBe('&#0; &#x110000;');
  });

  it('parses a growing text as it parses the whole', () => {
    const text =
      'Intro *one*\nline two\n\n# Head\n\n- a\n- b\n\n  more of b\n\n1. x\n\n```js\nlet a;\n\nlet b;\n```\n\n> q\nlazy\n\n' +
      '| a | b |\n|--|--|\n| 1 | 2 |\n\n    code\n\n    more code\n\nTitle\n===\n\n<div>\n\nend **bold** `c`\n\n***\nlast';
    let parsed: Parsed = { text: '', blocks: [] };
    for (let end = 0; end <= text.length; end++) {
      parsed = parseMore(parsed, text.slice(0, end));
      expect([...parsed.blocks], text.slice(0, end)).toEqual([...blocksOf(text.slice(0, end))]);
    }
    expect([...parseMore(parsed, 'another').blocks]).toEqual([...blocksOf('another')]);
  });

  it('shows a text that nests too deeply as it is', () => {
    for (const depth of [100, 5000]) {
      const quoted = html(`${'> '.repeat(depth)}end`);
      expect(quoted).toContain('end');
      expect(quoted).not.toContain('<blockquote>');
    }
    expect(html(`${'> '.repeat(9)}end`)).toContain('<blockquote>');
  });
});
