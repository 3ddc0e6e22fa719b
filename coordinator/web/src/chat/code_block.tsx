import { useMemo } from 'preact/hooks';
import { CopyButton } from '../shell/copy_button';
import { piecesOf } from './highlight';

export function CodeBlock({ language, text }: { language: string; text: string }) {
  const name = language.split(/\s/)[0] ?? '';
  const pieces = useMemo(() => piecesOf(text, name), [text, name]);
  return (
    <div class="code-block">
      <div class="code-head">
        <span>{name || 'text'}</span>
        <CopyButton text={text} what="the code" />
      </div>
      <pre tabIndex={0} aria-label={name ? `Code in ${name}` : 'Code'} role="region">
        <code>
          {pieces.map((piece) => (piece.kind ? <span class={`tok-${piece.kind}`}>{piece.text}</span> : piece.text))}
        </code>
      </pre>
    </div>
  );
}
