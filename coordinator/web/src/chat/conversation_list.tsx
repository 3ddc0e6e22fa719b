import { useState } from 'preact/hooks';
import { useStore } from '../lib/store';
import { Icon } from '../shell/icon';
import { type Conversation, titleOf } from './conversation';
import type { Conversations } from './conversations';

interface Props {
  conversations: Conversations;
  running: ReadonlyMap<string, unknown>;
  onChosen: () => void;
}

function Entry({
  conversation,
  current,
  running,
  conversations,
  onChosen,
}: Props & { conversation: Conversation; current: boolean }) {
  const [renaming, setRenaming] = useState(false);
  const title = titleOf(conversation);
  const rename = (name: string) => {
    setRenaming(false);
    conversations.change(conversation.id, (c) => ({ ...c, title: name.trim() }));
  };
  if (renaming) {
    return (
      <li>
        <input
          autoFocus
          value={title}
          aria-label="Name of the conversation"
          onBlur={(event) => rename(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === 'Enter') rename(event.currentTarget.value);
            if (event.key !== 'Escape') return;
            event.preventDefault();
            setRenaming(false);
          }}
        />
      </li>
    );
  }
  const choose = () => {
    conversations.select(conversation.id);
    onChosen();
  };
  return (
    <li class={current ? 'current' : undefined}>
      <button type="button" class="entry" aria-current={current ? 'true' : undefined} onClick={choose}>
        {running.has(conversation.id) && <span class="dot" role="img" aria-label="An answer is being written" />}
        <span class="entry-title">{title}</span>
      </button>
      <button type="button" class="quiet small tool" onClick={() => setRenaming(true)} aria-label={`Rename: ${title}`}>
        <Icon name="edit" />
      </button>
      <button
        type="button"
        class="quiet small tool"
        disabled={running.has(conversation.id)}
        onClick={() => confirm(`Delete the conversation “${title}”?`) && conversations.remove(conversation.id)}
        aria-label={`Delete: ${title}`}
      >
        <Icon name="trash" />
      </button>
    </li>
  );
}

export function ConversationList(props: Props) {
  const kept = useStore(props.conversations.store);
  const open = () => {
    props.conversations.open();
    props.onChosen();
  };
  return (
    <nav class="conversations" aria-label="Conversations">
      <button type="button" class="new" onClick={open}>
        <Icon name="plus" />
        New conversation
      </button>
      <ul>
        {kept.conversations.map((conversation) => (
          <Entry
            key={conversation.id}
            {...props}
            conversation={conversation}
            current={conversation.id === kept.current}
          />
        ))}
      </ul>
    </nav>
  );
}
