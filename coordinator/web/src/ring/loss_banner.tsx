// What went wrong in the ring lately and what was done about it, above whatever the page shows.
import { useState } from 'preact/hooks';
import { useStore } from '../lib/store';
import { Icon } from '../shell/icon';
import { type ClusterEvent, eventInWords, newsOf, timeOf } from './events';
import type { ClusterFeed } from './feed';

// Whether the member is to be named before a sentence that does not say it.
const namedBefore = (event: ClusterEvent): boolean => event.member !== null && !event.text.includes(event.member);

export function LossBanner({ feed }: { feed: ClusterFeed }) {
  const { status } = useStore(feed.store);
  const [seen, setSeen] = useState(-1);
  const events = status?.events ?? [];
  // A server that began anew counts its events from the beginning.
  const newest = events.at(-1)?.number ?? 0;
  const now = Date.now() / 1000;
  const news = newsOf(events, seen > newest ? -1 : seen, now);
  if (!news) return null;
  return (
    <section class={news.settled ? 'banner loss settled' : 'banner loss'} role="alert" aria-label="News of the ring">
      <ul>
        {news.events.map((event) => (
          <li key={event.number}>
            <time>{timeOf(event, now)}</time> {namedBefore(event) && <strong>{event.member}: </strong>}
            {eventInWords(event)}
          </li>
        ))}
        {status?.plan === null && <li>No plan serves now: {status.state}.</li>}
      </ul>
      <button type="button" class="quiet" aria-label="Put this news away" onClick={() => setSeen(newest)}>
        <Icon name="close" />
      </button>
    </section>
  );
}
