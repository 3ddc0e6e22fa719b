import { useEffect, useState } from 'preact/hooks';
import { Icon } from './icon';

// The clipboard of a page that was not opened over TLS or from this machine takes only what is selected.
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'off-screen';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

export function CopyButton({ text, what }: { text: string; what: string }) {
  const [note, setNote] = useState('');
  useEffect(() => {
    if (!note) return;
    const timer = setTimeout(() => setNote(''), 2000);
    return () => clearTimeout(timer);
  }, [note]);
  const onClick = async () => setNote((await copy(text)) ? 'Copied' : 'Not copied');
  return (
    <button type="button" class="quiet small" onClick={onClick} aria-label={note || `Copy ${what}`}>
      <Icon name={note === 'Copied' ? 'check' : 'copy'} />
      <span aria-live="polite">{note || 'Copy'}</span>
    </button>
  );
}
