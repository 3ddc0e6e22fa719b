import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { useStore } from '../lib/store';
import { Dialog } from '../shell/dialog';
import { Icon } from '../shell/icon';
import type { Answers } from './answer';
import { Composer } from './composer';
import { type Conversation, titleOf } from './conversation';
import { ConversationList } from './conversation_list';
import type { Conversations } from './conversations';
import { SettingsForm, settingsInWords } from './settings_form';
import { TurnView } from './turn_view';

interface Props {
  conversations: Conversations;
  answers: Answers;
}

// Keeps the end of the text in sight while it grows, unless the reader scrolled up.
function useFollow(changes: unknown, conversation: string) {
  const box = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    following.current = scrollHeight - scrollTop - clientHeight < 60;
  };
  useLayoutEffect(() => {
    following.current = true;
  }, [conversation]);
  useLayoutEffect(() => {
    if (following.current) box.current!.scrollTop = box.current!.scrollHeight;
  }, [changes, conversation]);
  return { box, onScroll, follow: () => (following.current = true) };
}

function Empty({ hint }: { hint: string }) {
  return (
    <div class="empty">
      <svg class="empty-mark" viewBox="0 0 32 32" aria-hidden="true">
        <path d="M18.2 5.2A11 11 0 0 1 26.6 18.9" class="mark-a" />
        <path d="M24.3 23.2A11 11 0 0 1 8.6 24.2" class="mark-b" />
        <path d="M5.8 20.1A11 11 0 0 1 13.8 5.2" class="mark-c" />
      </svg>
      <h2>Ask the ring something</h2>
      <p>{hint}</p>
    </div>
  );
}

function Turns({ conversation, answers, busy }: { conversation: Conversation; answers: Answers; busy: boolean }) {
  const lastTurn = conversation.turns.at(-1);
  const { box, onScroll, follow } = useFollow(conversation.turns, conversation.id);
  const [said, setSaid] = useState('');
  useEffect(() => {
    if (busy) {
      follow();
      setSaid('The answer is being written.');
    } else if (lastTurn?.role === 'assistant' && said) {
      setSaid(lastTurn.error || 'The answer is complete.');
    }
  }, [busy]);
  return (
    <div class="turns" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
      <div class="turns-inner">
        {conversation.turns.length === 0 && (
          <Empty hint="What you write goes to this server only, and conversations stay in this browser." />
        )}
        {conversation.turns.map((turn) => (
          <TurnView
            key={turn.id}
            turn={turn}
            writing={busy && turn === lastTurn}
            busy={busy}
            onEdit={(text) => answers.sayInstead(conversation.id, turn.id, text)}
            onAgain={() => answers.again(conversation.id, turn.id)}
          />
        ))}
      </div>
      <p class="off-screen" role="status">
        {said}
      </p>
    </div>
  );
}

export function ChatView({ conversations, answers }: Props) {
  const kept = useStore(conversations.store);
  const running = useStore(answers.running);
  const models = useStore(answers.models);
  const defaults = useStore(answers.defaults);
  const [panel, setPanel] = useState<'' | 'list' | 'settings'>('');
  const conversation = kept.conversations.find((c) => c.id === kept.current)!;
  const busy = running.has(conversation.id);
  const close = () => setPanel('');
  const list = <ConversationList conversations={conversations} running={running} onChosen={close} />;
  return (
    <section class="chat" aria-label="Chat">
      <aside class="chat-side">{list}</aside>
      <div class="chat-main">
        <div class="chat-head">
          <button type="button" class="quiet only-narrow" onClick={() => setPanel('list')} aria-label="Conversations">
            <Icon name="list" />
          </button>
          <h1 class="chat-title">{titleOf(conversation)}</h1>
          <button type="button" class="quiet" onClick={() => setPanel('settings')}>
            <Icon name="settings" />
            <span class="wide-only">{settingsInWords(conversation) || 'Settings'}</span>
            <span class="off-screen">Settings of this conversation</span>
          </button>
        </div>
        <Turns conversation={conversation} answers={answers} busy={busy} />
        {kept.fault && (
          <p class="fault" role="alert">
            {kept.fault}
          </p>
        )}
        <Composer
          key={conversation.id}
          busy={busy}
          onSend={(text) => answers.say(conversation.id, text)}
          onStop={() => answers.stop(conversation.id)}
        />
      </div>
      <Dialog title="Conversations" open={panel === 'list'} onClose={close} side>
        {list}
      </Dialog>
      <Dialog title="Settings of this conversation" open={panel === 'settings'} onClose={close}>
        <SettingsForm
          conversation={conversation}
          models={models}
          defaults={defaults}
          onChange={(change) => conversations.change(conversation.id, change, true)}
          onDone={close}
        />
      </Dialog>
    </section>
  );
}
