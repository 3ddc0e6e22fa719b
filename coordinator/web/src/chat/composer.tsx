import { useState } from 'preact/hooks';
import { Icon } from '../shell/icon';
import { sends, useGrow } from '../shell/text_field';

interface Props {
  busy: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
}

export function Composer({ busy, onSend, onStop }: Props) {
  const [text, setText] = useState('');
  const field = useGrow(text);
  const send = () => {
    if (busy || !text.trim()) return;
    onSend(text);
    setText('');
    field.current!.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape' && busy) onStop();
    if (!sends(event)) return;
    event.preventDefault();
    send();
  };
  const onSubmit = (event: Event) => {
    event.preventDefault();
    send();
  };
  return (
    <form class="composer" onSubmit={onSubmit}>
      <textarea
        ref={field}
        rows={1}
        value={text}
        placeholder="Write a message"
        aria-label="Message"
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {busy ? (
        <button type="button" class="round" onClick={onStop} aria-label="Stop the answer">
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="round primary" disabled={!text.trim()} aria-label="Send">
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}
