// The web page in a browser, against a running `gyre serve` with at least two members that have layers: GYRE_URL.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  accessibilityFaults,
  answers,
  ask,
  callsUrl,
  chooseSettings,
  finished,
  keptConversation,
  launch,
  message,
  open,
  phone,
  shot,
  url,
} from './browser.mjs';

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

const status = async () => (await fetch(`${url}/v1/cluster`)).json();
// Tokens of an answer during which there is time to do something.
const kLong = Number(process.env.GYRE_LONG ?? 6000);
const kPrompt = 'Tell me a story about a little fox.';

// Long answers: the tokens that end one are forbidden, and it is so hot that no text repeats itself. The page has no such
// settings, so they are put into its requests.
async function neverEnd(page) {
  const body = { logit_bias: {}, ignore_eos: true, temperature: 4 };
  for (const marker of ['<|im_end|>', '<|im_start|>', '<|endoftext|>', '</s>', '<|eot_id|>']) {
    const request = { method: 'POST', headers: { 'content-type': 'application/json' } };
    const content = JSON.stringify({ content: marker, parse_special: true });
    const { tokens } = await (await fetch(`${url}/tokenize`, { ...request, body: content })).json();
    if (tokens.length === 1) body.logit_bias[tokens[0]] = -100;
  }
  await page.route('**/v1/chat/completions', (route) =>
    route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ...body }) }),
  );
}

test('the page comes with a strict policy, and from nowhere else', async () => {
  const response = await fetch(`${url}/`);
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-security-policy'), /default-src 'self'/);
  assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
  const page = await open(browser);
  await message(page).waitFor();
  await shot(page, 'chat-empty-light');
  assert.deepEqual(page.faults, []);
});

test('a chat streams, and says how fast', async () => {
  const page = await open(browser);
  await neverEnd(page);
  await chooseSettings(page, { Temperature: 1, Seed: 7, 'Max tokens': kLong });
  // How long the answer is each time that it grows.
  await page.evaluate(() => {
    globalThis.lengths = [];
    new MutationObserver(() => {
      const length = document.querySelector('.answer .markdown')?.textContent.length ?? 0;
      if (length > (globalThis.lengths.at(-1) ?? 0)) globalThis.lengths.push(length);
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
  });
  const turn = await ask(page, kPrompt);
  assert.ok(turn.content.length > 20, turn.content);
  const lengths = await page.evaluate(() => globalThis.lengths);
  assert.ok(lengths.length >= 3, `the answer grew in ${lengths.length} pieces`);
  assert.ok(turn.stats.answerTokens > 1 && turn.stats.promptTokens > 1, JSON.stringify(turn.stats));
  await page.getByText(/\d+ tokens · [\d.]+ tokens\/s · first after/).waitFor();
  await shot(page, 'chat-light');
  assert.deepEqual(page.faults, []);
});

test('an answer is stopped, written again, and a question edited', async () => {
  const page = await open(browser);
  await neverEnd(page);
  await chooseSettings(page, { Temperature: 1, Seed: 7, 'Max tokens': kLong });
  await message(page).fill(kPrompt);
  await page.keyboard.press('Enter');
  await page.locator('.answer.writing .markdown').waitFor();
  await page.getByRole('button', { name: 'Stop the answer' }).click();
  assert.equal((await finished(page)).ending, 'stopped');
  await chooseSettings(page, { 'Max tokens': 20 });
  await page.getByRole('button', { name: 'Write this answer again' }).click();
  const first = await finished(page);
  assert.equal(first.ending, 'length');
  await page.getByRole('button', { name: 'Edit your message' }).click();
  await page.getByLabel('Edit your message').fill('Say something else.');
  await page.locator('.editor').getByRole('button', { name: 'Send' }).click();
  await page.getByText('Say something else.').first().waitFor();
  await finished(page);
  assert.deepEqual(
    (await keptConversation(page)).turns.map((turn) => turn.role),
    ['user', 'assistant'],
  );
  assert.deepEqual(page.faults, []);
});

test('calls of tools are shown folded, and none runs', { skip: callsUrl === '' && 'no model calls tools' }, async () => {
  const page = await open(browser, 'chat', {}, callsUrl);
  const parameters = { type: 'object', properties: { city: { type: 'string' } } };
  const tools = [{ type: 'function', function: { name: 'get_weather', parameters } }];
  const writeTools = async (text) => {
    await page.getByRole('button', { name: /Settings of this conversation/ }).click();
    const folded = page.locator('details', { has: page.getByLabel('Tools as JSON') });
    await folded.waitFor();
    if (!(await folded.evaluate((details) => details.open))) await folded.locator('summary').click();
    await page.getByLabel('Tools as JSON').fill(text);
  };
  await writeTools('[{');
  await page.getByText('The tools are not JSON').waitFor();
  await shot(page, 'chat-tools-settings');
  await page.keyboard.press('Escape');
  await message(page).fill('How is the weather?');
  await page.keyboard.press('Enter');
  await page.getByRole('alert').getByText('The tools are not JSON').waitFor();
  await writeTools(JSON.stringify(tools));
  await page.keyboard.press('Escape');
  const requests = [];
  page.on('request', (request) => request.url().endsWith('/chat/completions') && requests.push(request.postDataJSON()));
  const turn = await ask(page, 'How is the weather?');
  assert.deepEqual(requests[0].tools, tools);
  assert.deepEqual(
    turn.calls.map((call) => [call.name, JSON.parse(call.arguments)]),
    [
      ['get_weather', { city: 'Paris' }],
      ['get_weather', { city: 'Oslo' }],
    ],
  );
  const calls = page.locator('.answer .call');
  assert.equal(await calls.count(), 2);
  assert.equal(await calls.first().locator('pre').isVisible(), false);
  await calls.first().locator('summary').click();
  assert.match(await calls.first().locator('pre').textContent(), /"city": "Paris"/);
  await page.getByText('This page shows calls of tools and runs none.').waitFor();
  await shot(page, 'chat-calls');
  // They are still there when the page is opened again.
  await page.reload();
  assert.equal(await page.locator('.answer .call').count(), 2);
  assert.equal(requests.length, 1);
  assert.deepEqual(page.faults, []);
  await page.locator('.answer .call summary').first().click();
  assert.deepEqual(await accessibilityFaults(page), []);
  await writeTools('[{');
  assert.deepEqual(await accessibilityFaults(page), []);
});

test('conversations stay in the browser', async () => {
  const page = await open(browser);
  await chooseSettings(page, { 'System prompt': 'Be brief.', 'Max tokens': 8 });
  await ask(page, 'The first one');
  await page.getByRole('button', { name: 'New conversation' }).first().click();
  await ask(page, 'The second one');
  await page.reload();
  await page.locator('.entry', { hasText: 'The first one' }).click();
  await answers(page).first().waitFor();
  const kept = await page.evaluate(
    () => Object.keys(localStorage).filter((key) => key.startsWith('gyre.conversation.')).length,
  );
  assert.equal(kept, 2);
  page.on('dialog', (dialog) => dialog.accept());
  await page.getByRole('button', { name: 'Delete: The first one' }).click();
  await page.locator('.entry', { hasText: 'The first one' }).waitFor({ state: 'detached' });
});

// How the pointer goes from where the first boundary is to its next place.
async function boundaryPath(page, handle) {
  const [now, min] = await Promise.all(
    ['aria-valuenow', 'aria-valuemin'].map((name) => handle.getAttribute(name).then(Number)),
  );
  const place = now > min ? now - 1 : now + 1;
  const { model } = await status();
  const angle = ((18 + (324 * place) / model.layers - 90) * Math.PI) / 180;
  const flow = await page.locator('.ring .flow').boundingBox();
  const center = { x: flow.x + flow.width / 2, y: flow.y + flow.height / 2 };
  const knob = await handle.locator('.boundary-knob').boundingBox();
  const from = { x: knob.x + knob.width / 2, y: knob.y + knob.height / 2 };
  const radius = Math.hypot(from.x - center.x, from.y - center.y);
  const to = { x: center.x + radius * Math.cos(angle), y: center.y + radius * Math.sin(angle) };
  return { from, to, place };
}

async function dragBoundary(page) {
  const handle = page.getByRole('slider').first();
  const { from, to, place } = await boundaryPath(page, handle);
  await page.mouse.move(from.x, from.y);
  await page.mouse.down();
  await page.mouse.move(to.x, to.y, { steps: 5 });
  await page.mouse.up();
  assert.equal(Number(await handle.getAttribute('aria-valuenow')), place);
}

test('a boundary moves in the middle of an answer, whose text stays the same', async () => {
  const page = await open(browser, 'both');
  await neverEnd(page);
  await chooseSettings(page, { Temperature: 1, Seed: 7, 'Max tokens': kLong });
  const undisturbed = await ask(page, kPrompt);
  assert.equal(undisturbed.stats.answerTokens, kLong);
  const before = (await status()).plan.number;
  // It is dragged before the answer begins, so that a fast machine does not end the answer meanwhile.
  await dragBoundary(page);
  await page
    .getByText(/Layers? \d+.* from .* to /)
    .first()
    .waitFor();
  await shot(page, 'both-dragged');
  await page.getByRole('button', { name: 'Write this answer again' }).click();
  await page.locator('.answer.writing .markdown').waitFor();
  await page.getByRole('button', { name: 'Apply' }).click();
  await page.locator('.change').getByText(/^Plan \d+ serves: /).waitFor();
  assert.ok(
    await page.locator('.answer.writing').isVisible(),
    'the answer ended before the new plan served: raise GYRE_LONG',
  );
  const disturbed = await finished(page);
  assert.equal((await status()).plan.number, before + 1);
  assert.equal(disturbed.stats.answerTokens, kLong);
  assert.equal(disturbed.content, undisturbed.content);
  assert.deepEqual(page.faults, []);
});

test('each link says how long it takes and what it carries, inside of the dotted circle', async () => {
  const page = await open(browser, 'ring');
  // Frames measure the links, so that an answer has to go round first.
  const { model, members } = await status();
  const body = JSON.stringify({ model: model.name, prompt: kPrompt, max_tokens: 64 });
  const answer = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  });
  assert.equal(answer.status, 200);
  await page.waitForFunction((count) => {
    const labels = [...document.querySelectorAll('.link-label')];
    return labels.length === count && labels.every((label) => /^[\d.]+ (µs|ms)[\d.]+ \S*B\/s$/.test(label.textContent));
  }, members.length);
  const outside = await page.evaluate(() => {
    const circle = document.querySelector('.ring .flow').getBoundingClientRect();
    const [x, y, radius] = [circle.x + circle.width / 2, circle.y + circle.height / 2, circle.width / 2];
    const far = ({ left, right, top, bottom }) =>
      Math.hypot(Math.max(Math.abs(left - x), Math.abs(right - x)), Math.max(Math.abs(top - y), Math.abs(bottom - y)));
    return [...document.querySelectorAll('.link-label')]
      .filter((label) => far(label.getBoundingClientRect()) > radius)
      .map((label) => label.textContent);
  });
  assert.deepEqual(outside, []);
  assert.deepEqual(page.faults, []);
});

test('keys move a boundary, Escape takes it back', async () => {
  const page = await open(browser, 'ring');
  const handle = page.getByRole('slider').first();
  await handle.focus();
  const [now, min] = await Promise.all(
    ['aria-valuenow', 'aria-valuemin'].map((name) => handle.getAttribute(name).then(Number)),
  );
  const key = now > min ? 'ArrowLeft' : 'ArrowRight';
  await page.keyboard.press(key);
  assert.equal(Number(await handle.getAttribute('aria-valuenow')), now + (now > min ? -1 : 1));
  await page.getByRole('button', { name: 'Apply' }).waitFor();
  await page
    .getByText(/Layers? \d+.* from .* to /)
    .first()
    .waitFor();
  await page.keyboard.press('Escape');
  assert.equal(Number(await handle.getAttribute('aria-valuenow')), now);
  await page.getByRole('button', { name: 'Apply' }).waitFor({ state: 'detached' });
  assert.deepEqual(page.faults, []);
});

test('a finger drags a boundary', async () => {
  const page = await open(browser, 'ring', phone);
  const handle = page.getByRole('slider').first();
  await handle.scrollIntoViewIfNeeded();
  const { from, to, place } = await boundaryPath(page, handle);
  const session = await page.context().newCDPSession(page);
  const touch = (type, touchPoints) => session.send('Input.dispatchTouchEvent', { type, touchPoints });
  await touch('touchStart', [from]);
  for (let i = 1; i <= 5; i++) {
    await touch('touchMove', [{ x: from.x + ((to.x - from.x) * i) / 5, y: from.y + ((to.y - from.y) * i) / 5 }]);
  }
  await touch('touchEnd', []);
  assert.equal(Number(await handle.getAttribute('aria-valuenow')), place);
  await page.getByRole('button', { name: 'Undo' }).click();
  assert.deepEqual(page.faults, []);
});

test('a member is drained, undrained and given layers again', async () => {
  const page = await open(browser, 'ring');
  const button = page.getByRole('button', { name: /^Drain / }).first();
  const name = (await button.textContent()).replace('Drain ', '').trim();
  const card = page.locator(`[data-member="${name}"]`);
  await button.click();
  await page.getByRole('button', { name: 'Apply' }).click();
  await page.locator('.change').getByText(`${name} is drained.`).waitFor();
  await card.getByText('drained').waitFor();
  assert.equal((await status()).members.find((member) => member.name === name).layers, null);
  await shot(page, 'ring-drained');
  await card.getByRole('button', { name: 'Undrain' }).click();
  await card.getByText('has no layers').waitFor();
  await card.getByRole('button', { name: 'Give layers' }).click();
  await page.getByRole('button', { name: 'Apply' }).click();
  await card.getByText('serves').waitFor();
  assert.deepEqual(page.faults, []);
});

test('beside the chat a low window shows what a drag costs, and the chat keeps its width', async () => {
  const page = await open(browser, 'both', { viewport: { width: 1366, height: 768 } });
  const width = () => page.locator('.chat-main').evaluate((element) => element.getBoundingClientRect().width);
  await message(page).waitFor();
  const empty = await width();
  await page.getByRole('slider').first().focus();
  await page.keyboard.press('ArrowLeft');
  await page
    .getByText(/Layers? \d+.* from .* to /)
    .first()
    .waitFor();
  const { y, height } = await page.getByRole('button', { name: 'Apply' }).boundingBox();
  assert.ok(y >= 0 && y + height <= 768, `Apply is at ${y}`);
  await page.keyboard.press('Escape');
  await chooseSettings(page, { 'Max tokens': 3 });
  await ask(page, kPrompt);
  assert.equal(await width(), empty);
  assert.deepEqual(page.faults, []);
});

test('code has colors', async () => {
  const page = await open(browser);
  const content = 'So:\n\n```python\nreturn "<b>x</b>"  # done\n```\n';
  await page.route('**/v1/chat/completions', (route) =>
    route.fulfill({
      contentType: 'text/event-stream',
      body: `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: 'stop' }] })}\n\ndata: [DONE]\n\n`,
    }),
  );
  await ask(page, kPrompt);
  const code = page.locator('.code-block code');
  assert.equal(await code.textContent(), 'return "<b>x</b>"  # done');
  const colors = await code.locator('span').evaluateAll((spans) => spans.map((span) => getComputedStyle(span).color));
  assert.equal(new Set(colors).size, 3, `the colors are ${colors}`);
  assert.deepEqual(page.faults, []);
});

test('a loss is told until it is put away, and the end of the server', async () => {
  const page = await open(browser);
  const now = Date.now() / 1000;
  const event = (number, kind, text, took_ms = null) => ({ number, at: now, kind, member: 'zelkova', plan: 9, took_ms, text });
  const told = {
    ...(await status()),
    events: [event(1, 'lost', 'zelkova was lost: its process ended.'), event(2, 'recovered', 'Plan 9 serves.', 540)],
  };
  // The stream ends after this status, and the server gives no other one.
  let asked = 0;
  await page.route('**/v1/cluster/events', (route) =>
    asked++ === 0
      ? route.fulfill({ contentType: 'text/event-stream', body: `event: status\ndata: ${JSON.stringify(told)}\n\n` })
      : route.abort('connectionrefused'),
  );
  await page.reload();
  const banner = page.getByRole('alert', { name: 'News of the ring' });
  await banner.getByText('zelkova was lost: its process ended.').waitFor();
  await banner.getByText('Plan 9 serves. It took 540 ms.').waitFor();
  assert.match(await banner.textContent(), /\d\d:\d\d:\d\d/);
  await page.getByText(/^no answer since \d\d:\d\d:\d\d$/).waitFor();
  await page.getByRole('link', { name: 'Ring' }).click();
  await page.getByText(/What is below is what it said last/).waitFor();
  await page.getByRole('region', { name: 'Events' }).getByText('zelkova was lost').waitFor();
  assert.deepEqual(await page.locator('.member .state').allTextContents(), told.members.map(() => 'served'));
  assert.equal(await page.locator('.pill').getByText(/tokens\/s/).count(), 0);
  assert.ok(await page.getByRole('button', { name: /^Drain / }).first().isDisabled());
  await shot(page, 'ring-ended');
  await page.getByRole('button', { name: 'Put this news away' }).click();
  await banner.waitFor({ state: 'detached' });
  assert.deepEqual(page.faults, []);
  await fine(page);
});

test('the timeline shows steps', async (t) => {
  const page = await open(browser, 'both');
  await page.evaluate(() => {
    globalThis.drawnTexts = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
      globalThis.drawnTexts.push({ text, y });
      return draw.call(this, text, x, y, ...rest);
    };
  });
  await neverEnd(page);
  await chooseSettings(page, { 'Max tokens': kLong });
  await message(page).fill(kPrompt);
  // Before the answer begins: on a fast machine it is over before a click.
  await page.getByRole('button', { name: 'Record 2 seconds' }).click();
  await message(page).press('Enter');
  const missing = page.getByText('This server records no timelines.');
  await page
    .getByRole('img', { name: /steps in \d+ ms/ })
    .or(missing)
    .waitFor();
  if (await missing.isVisible()) return t.skip('the server has no /v1/cluster/trace');
  await page.getByRole('img', { name: /steps in \d+ ms/ }).scrollIntoViewIfNeeded();
  await shot(page, 'timeline');
  const inRing = (await status()).members.sort((a, b) => a.layers.first - b.layers.first).map((member) => member.name);
  const drawn = (await page.evaluate(() => globalThis.drawnTexts)).filter(({ text }) => inRing.includes(text));
  const lanes = [...new Map(drawn.map(({ text, y }) => [y, text])).entries()].sort(([a], [b]) => a - b);
  assert.deepEqual(
    lanes.map(([, text]) => text),
    inRing,
    'whole names, in the order of the ring',
  );
  assert.deepEqual(page.faults, []);
});

test('errors are sentences, and a 401 asks for a key that is sent from then on', async () => {
  const page = await open(browser);
  const refuse = (status, message) => (route) =>
    route.fulfill({
      status,
      contentType: 'application/json',
      body: JSON.stringify({ error: { message, type: 'x', param: null, code: null } }),
    });
  await page.route('**/v1/chat/completions', refuse(422, 'temperature is 7; it must lie from 0 to 2'));
  await message(page).fill('Hello');
  await page.keyboard.press('Enter');
  await answers(page).getByText('Temperature is 7; it must lie from 0 to 2.').waitFor();
  await page.unroute('**/v1/chat/completions');
  await page.route('**/v1/chat/completions', refuse(401, 'an API key is needed'));
  await page.getByRole('button', { name: 'Write this answer again' }).click();
  await page.getByText('This server wants an API key.').waitFor();
  await shot(page, 'key-wanted');
  await page.unroute('**/v1/chat/completions');
  await page.locator('.banner').getByLabel('API key').fill('secret');
  await page.getByRole('button', { name: 'Keep it in this browser' }).click();
  const asked = page.waitForRequest('**/v1/chat/completions');
  await page.getByRole('button', { name: 'Write this answer again' }).click();
  assert.equal((await asked).headers().authorization, 'Bearer secret');
});

// Nothing that axe-core finds, and nothing that makes the page wider or longer than its window.
async function fine(page) {
  assert.deepEqual(await accessibilityFaults(page), []);
  const { width, height } = page.viewportSize();
  const { scrollWidth, scrollHeight } = await page.evaluate(() => {
    const { scrollWidth, scrollHeight } = document.documentElement;
    return { scrollWidth, scrollHeight };
  });
  assert.ok(scrollWidth <= width && scrollHeight <= height, `the page has ${scrollWidth} x ${scrollHeight} pixels`);
}

// Without GYRE_ALL_LOOKS=1 only the first look: axe-core takes half a minute for each.
const kAlways = 'light';
for (const [name, options] of Object.entries({
  light: { colorScheme: 'light' },
  dark: { colorScheme: 'dark' },
  'phone-light': { ...phone, colorScheme: 'light' },
  'phone-dark': { ...phone, colorScheme: 'dark', reducedMotion: 'reduce' },
})) {
  const skip = name !== kAlways && !process.env.GYRE_ALL_LOOKS && 'only with GYRE_ALL_LOOKS=1';
  test(`axe-core finds nothing wrong: ${name}`, { skip }, async () => {
    const page = await open(browser, 'chat', options);
    await chooseSettings(page, { 'Max tokens': 30 });
    await ask(page, kPrompt);
    await fine(page);
    await shot(page, `chat-${name}`);
    await page.getByRole('button', { name: /Settings of this conversation/ }).click();
    await fine(page);
    await shot(page, `settings-${name}`);
    await page.keyboard.press('Escape');
    await page.getByRole('link', { name: 'Ring' }).click();
    await page.getByRole('slider').first().focus();
    await page.keyboard.press('ArrowLeft');
    await page.getByRole('button', { name: 'Apply' }).waitFor();
    await fine(page);
    await shot(page, `ring-${name}`);
    if (!options.isMobile) {
      await page.getByRole('link', { name: 'Both' }).click();
      await fine(page);
      await shot(page, `both-${name}`);
    }
    if (options.reducedMotion) {
      assert.equal(await page.locator('.flow').evaluate((element) => getComputedStyle(element).animationName), 'none');
    }
  });
}
