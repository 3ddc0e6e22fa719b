import { useEffect, useState } from 'preact/hooks';
import type { Answers } from '../chat/answer';
import { ChatView } from '../chat/chat_view';
import type { Conversations } from '../chat/conversations';
import { perSecond } from '../lib/format';
import { useStore } from '../lib/store';
import { type ClusterFeed, staleSince } from '../ring/feed';
import { LossBanner } from '../ring/loss_banner';
import { RingView } from '../ring/ring_view';
import { Icon } from './icon';
import { KeyBanner } from './key_form';
import { type Theme, chooseTheme, theme } from './theme';

type Place = 'chat' | 'ring' | 'both';

const kPlaces: { place: Place; label: string }[] = [
  { place: 'chat', label: 'Chat' },
  { place: 'ring', label: 'Ring' },
  { place: 'both', label: 'Both' },
];

function placeNow(): Place {
  const name = location.hash.replace(/^#\/?/, '');
  return kPlaces.some(({ place }) => place === name) ? (name as Place) : 'chat';
}

function usePlace(): Place {
  const [place, setPlace] = useState(placeNow);
  useEffect(() => {
    const follow = () => setPlace(placeNow());
    addEventListener('hashchange', follow);
    return () => removeEventListener('hashchange', follow);
  }, []);
  return place;
}

const kNextTheme: Record<Theme, Theme> = { system: 'light', light: 'dark', dark: 'system' };
const kThemeIcon = { system: 'system', light: 'sun', dark: 'moon' } as const;

function ThemeButton() {
  const now = useStore(theme);
  const words = { system: 'as the system', light: 'light', dark: 'dark' };
  return (
    <button
      type="button"
      class="quiet"
      onClick={() => chooseTheme(kNextTheme[now])}
      aria-label={`Colors: ${words[now]}. Change to ${words[kNextTheme[now]]}.`}
      title={`Colors: ${words[now]}`}
    >
      <Icon name={kThemeIcon[now]} />
    </button>
  );
}

function Pill({ feed }: { feed: ClusterFeed }) {
  const news = useStore(feed.store);
  const { status } = news;
  if (!status) return null;
  const stale = staleSince(news);
  const serving = status.plan !== null && !stale;
  const rate = status.engine.tokens_per_second;
  return (
    <p class={serving ? 'pill' : 'pill waiting'}>
      <i aria-hidden="true" />
      <span>{stale ? `no answer since ${stale}` : status.state}</span>
      {serving && <span class="pill-more">{perSecond(rate)} tokens/s</span>}
    </p>
  );
}

function Header({ place, feed }: { place: Place; feed: ClusterFeed }) {
  return (
    <header class="top">
      <a class="brand" href="#/chat" aria-label="Gyre">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <path d="M18.2 5.2A11 11 0 0 1 26.6 18.9" class="mark-a" />
          <path d="M24.3 23.2A11 11 0 0 1 8.6 24.2" class="mark-b" />
          <path d="M5.8 20.1A11 11 0 0 1 13.8 5.2" class="mark-c" />
        </svg>
        <span>Gyre</span>
      </a>
      <nav class="places" aria-label="Pages">
        {kPlaces.map(({ place: to, label }) => (
          <a
            key={to}
            href={`#/${to}`}
            class={to === 'both' ? 'only-wide' : undefined}
            aria-current={to === place ? 'page' : undefined}
          >
            {label}
          </a>
        ))}
      </nav>
      <Pill feed={feed} />
      <ThemeButton />
    </header>
  );
}

// The address stays, as it says which page is shown.
function skip(event: Event) {
  event.preventDefault();
  document.getElementById('content')!.focus();
}

interface Props {
  conversations: Conversations;
  answers: Answers;
  feed: ClusterFeed;
}

// The chat stays while it is not shown, with what is written in its field.
export function App({ conversations, answers, feed }: Props) {
  const place = usePlace();
  return (
    <div class={`app place-${place}`}>
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <Header place={place} feed={feed} />
      <div class="banners">
        <KeyBanner />
        <LossBanner feed={feed} />
      </div>
      <main id="content" tabIndex={-1}>
        <div class="place" hidden={place === 'ring'}>
          <ChatView conversations={conversations} answers={answers} />
        </div>
        {place !== 'chat' && (
          <div class="place">
            <RingView feed={feed} />
          </div>
        )}
      </main>
    </div>
  );
}
