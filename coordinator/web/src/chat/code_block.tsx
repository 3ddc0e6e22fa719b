import { CopyButton } from '../shell/copy_button';

export function CodeBlock({ language, text }: { language: string; text: string }) {
  const name = language.split(/\s/)[0] ?? '';
  return (
    <div class="code-block">
      <div class="code-head">
        <span>{name || 'text'}</span>
        <CopyButton text={text} what="the code" />
      </div>
      <pre tabIndex={0} aria-label={name ? `Code in ${name}` : 'Code'} role="region">
        <code>{text}</code>
      </pre>
    </div>
  );
}
