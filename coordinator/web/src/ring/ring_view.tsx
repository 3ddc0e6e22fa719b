import { useStore } from '../lib/store';
import { plural } from '../lib/format';
import { ChangePanel } from './change_panel';
import { type ClusterStatus, hasDryRun } from './cluster';
import { EventList } from './event_list';
import { type ClusterFeed, type Feed, staleSince } from './feed';
import { Graphs } from './graphs';
import { History } from './history';
import { IdleMembers } from './idle_members';
import { MemberCards } from './member_cards';
import { ProposalCard } from './proposal_card';
import { RingSvg } from './ring_svg';
import { addMember, evenShares, moveBoundary, parseRanges, sameShares, sharesOf } from './shares';
import { TimelineCard } from './timeline';
import { type Planned, useChange } from './use_change';

function modelInWords(status: ClusterStatus, stale: string): string {
  const { model, plan } = status;
  if (!model) return 'No model is loaded.';
  const words = `${model.id}: ${model.architecture}, ${plural(model.layers, 'layer')}, KV in ${model.kv_type}`;
  if (!plan) return `${words}.`;
  return `${words}. Plan ${plan.number} ${stale ? `served at ${stale}` : 'serves'}.`;
}

// The sketch as shares; back where it began it is no change.
function sketchTo(planned: Planned, serving: ReturnType<typeof sharesOf>, shares: ReturnType<typeof sharesOf>) {
  if (sameShares(serving, shares)) planned.undo();
  else planned.sketch(shares);
}

function Live({ status, feed }: { status: ClusterStatus; feed: Feed }) {
  const planned = useChange(status.plan?.number ?? null);
  const shares = sharesOf(status.members);
  const draft = planned.draft ?? shares;
  const layers = status.model?.layers ?? 0;
  const names = status.members.filter((m) => m.state === 'serving' || m.state === 'idle').map((m) => m.name);
  const even = evenShares(shares);
  const stale = staleSince(feed);
  const locked = planned.applying || stale !== '';
  const sketch = (next: typeof shares) => sketchTo(planned, shares, next);
  const add = (name: string) => {
    const next = addMember(draft, name);
    if (next) sketch(next);
  };
  return (
    <div class={stale ? 'ring-grid stale' : 'ring-grid'}>
      <div class="ring-stage">
        {shares.length > 0 ? (
          <RingSvg
            status={status}
            shares={shares}
            draft={draft}
            stale={stale}
            locked={locked}
            onMove={(boundary, place) => sketch(moveBoundary(draft, boundary, place))}
            onUndo={planned.undo}
          />
        ) : (
          <div class="empty">
            <h2>{status.history.length > 0 ? 'No plan serves' : 'No plan serves yet'}</h2>
            <p>{status.state}</p>
          </div>
        )}
        <IdleMembers members={status.members} stale={stale} />
        <p class="legend">
          <span class="legend-busy">outer edge: busy</span>
          <span class="legend-layers">band: layers</span>
          <span class="legend-memory">inner line: memory in use</span>
        </p>
      </div>
      <div class="ring-side">
        {status.proposal && !planned.change && (
          <ProposalCard
            proposal={status.proposal}
            automatic={status.rebalance === 'auto'}
            locked={locked}
            onLook={(ranges) => {
              const parsed = parseRanges(ranges, names, layers);
              if (typeof parsed !== 'string') sketch(parsed);
            }}
          />
        )}
        {shares.length > 0 && (
          <ChangePanel
            planned={planned}
            locked={locked}
            shares={shares}
            names={names}
            layers={layers}
            onEven={
              shares.length > 1 && layers >= shares.length && !sameShares(even, shares) ? () => sketch(even) : null
            }
          />
        )}
        <EventList events={status.events ?? []} />
      </div>
      <div class="ring-below">
        <History entries={status.history} />
        <MemberCards
          status={status}
          rowRates={feed.rowRates}
          stale={stale}
          locked={locked}
          onChange={(change) => (hasDryRun(change) ? planned.propose(change) : planned.run(change))}
          onAdd={add}
        />
        <Graphs samples={feed.samples} />
        <TimelineCard order={shares.map((share) => share.name)} />
      </div>
    </div>
  );
}

export function RingView({ feed }: { feed: ClusterFeed }) {
  const news = useStore(feed.store);
  const stale = staleSince(news);
  return (
    <section class="ring-page" aria-label="The ring">
      <div class="ring-head">
        <h1>The ring</h1>
        {news.status && <p>{modelInWords(news.status, stale)}</p>}
      </div>
      {news.fault && (
        <p class="fault" role="alert">
          {news.fault}
          {stale && ` What is below is what it said last, at ${stale}.`}
        </p>
      )}
      {news.status ? (
        <Live status={news.status} feed={news} />
      ) : (
        !news.fault && <p class="hint">Waiting for the first news of the ring…</p>
      )}
    </section>
  );
}
