import { render } from 'preact';
import { Answers } from './chat/answer';
import { Conversations } from './chat/conversations';
import { apiKey } from './lib/api';
import { ClusterFeed } from './ring/feed';
import { App } from './shell/app';
import './style/page.css';

function storage(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

const conversations = new Conversations(storage());
const answers = new Answers(conversations);
const feed = new ClusterFeed();

addEventListener('storage', (event) => {
  const writing = [...answers.running.get().keys()].some((id) => event.key?.endsWith(id));
  if (!writing) conversations.changedElsewhere(event.key, event.newValue);
});
addEventListener('pagehide', () => conversations.save());
apiKey.watch(() => void answers.loadModels());
void answers.loadModels();
feed.start();

render(<App conversations={conversations} answers={answers} feed={feed} />, document.getElementById('page')!);
