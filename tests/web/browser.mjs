// A browser for the tests of the web page: Debian's Chromium, which loads nothing but what the server at GYRE_URL gives.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

export const url = (process.env.GYRE_URL ?? 'http://127.0.0.1:8080').replace(/\/$/, '');
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

const args =
  '--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync';

export const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: args.split(' ') });

export const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

// A page of its own storage, of the server `at`. `faults` collects what the page must never do.
export async function open(browser, place = 'chat', options = {}, at = url) {
  // Scripts of the tests run beside the page's policy; what the page itself does is still held to it.
  const context = await browser.newContext({ viewport: { width: 1320, height: 1000 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60000);
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(`error: ${error.message}`));
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== at && !request.url().startsWith('blob:')) {
      page.faults.push(`request to ${request.url()}`);
    }
  });
  page.on('console', (message) => {
    // Chromium reports answers like 401 here, which the page shows in words.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) {
      page.faults.push(`console: ${message.text()}`);
    }
  });
  await page.goto(`${at}/#/${place}`);
  return page;
}

export async function shot(page, name) {
  if (!process.env.GYRE_SHOTS) return;
  mkdirSync(process.env.GYRE_SHOTS, { recursive: true });
  await page.screenshot({ path: `${process.env.GYRE_SHOTS}/${name}.png` });
}

// A server whose model calls tools; "": there is none.
export const callsUrl = process.env.GYRE_CALLS_URL ?? '';

// What axe-core finds wrong, as lines.
export async function accessibilityFaults(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('Page.setBypassCSP', { enabled: true });
  await page
    .addScriptTag({ path: axe })
    .catch(async () => page.evaluate((await import('node:fs')).readFileSync(axe, 'utf8')));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.target} ${node.failureSummary}`));
}

export const message = (page) => page.getByLabel('Message', { exact: true });
export const answers = (page) => page.getByRole('article', { name: 'Answer' });

// The conversation in the page's storage that was changed last.
export const keptConversation = (page) =>
  page.evaluate(() => {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith('gyre.conversation.'));
    return keys.map((key) => JSON.parse(localStorage[key])).sort((a, b) => b.updated - a.updated)[0];
  });

export async function chooseSettings(page, settings) {
  await page.getByRole('button', { name: /Settings of this conversation/ }).click();
  for (const [label, value] of Object.entries(settings))
    await page.getByLabel(label, { exact: true }).fill(String(value));
  await page.keyboard.press('Escape');
}

// Sends `text` and waits until its answer is complete; returns the answer's turn as the browser keeps it.
export async function ask(page, text) {
  await message(page).fill(text);
  await page.keyboard.press('Enter');
  return finished(page);
}

export async function finished(page) {
  await page.getByRole('button', { name: 'Send' }).waitFor();
  await page.waitForFunction(() => !document.querySelector('[aria-busy=true]'));
  const turn = (await keptConversation(page)).turns.at(-1);
  assert.equal(turn.error, '');
  return turn;
}
