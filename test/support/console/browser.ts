import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';

/** Debian's package of Chromium without windows. Nothing is downloaded. */
const CHROMIUM = '/usr/bin/chromium-headless-shell';

/** @throws Error when it is not installed; `dev/setup` installs it */
export function openBrowser(): Promise<Browser> {
  if (!existsSync(CHROMIUM)) throw new Error(`${CHROMIUM} is missing: run dev/setup as root, or install it`);
  // Chromium leaves reports of crashes and settings of the desktop in the home folder.
  const home = tmpdir();
  return chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-dev-shm-usage'],
    env: { ...process.env, HOME: home, XDG_CONFIG_HOME: home, XDG_CACHE_HOME: home },
  });
}

export interface Visitor {
  context: BrowserContext;
  page: Page;
  /**
   * What no page of the console may do: errors in its log, reports of its policy, requests to other origins.
   */
  problems: string[];
  /** Forgets failed requests that a test has caused, which a browser logs as errors. */
  forgive(...statuses: number[]): void;
}

/** Runs in each page. */
const REPORTS_VIOLATIONS = `document.addEventListener('securitypolicyviolation', (event) => {
  reportViolation([event.effectiveDirective, event.blockedURI, event.sample].join(' '));
});`;

const FAILED = /^Failed to load resource: the server responded with a status of (\d+)/;

/** A person with a browser profile of their own. */
export async function visit(
  browser: Browser,
  url: string,
  options: Parameters<Browser['newContext']>[0] = {},
): Promise<Visitor> {
  const context = await browser.newContext({
    baseURL: url,
    viewport: { width: 1280, height: 800 },
    // A colour in transition has no contrast of its own.
    reducedMotion: 'reduce',
    ...options,
  });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: url });
  context.setDefaultTimeout(60_000);
  const problems: string[] = [];
  const forgiven = new Set<number>();
  await context.exposeBinding('reportViolation', (_, text: string) => {
    problems.push(`policy: ${text}`);
  });
  await context.addInitScript({ content: REPORTS_VIOLATIONS });
  const { origin } = new URL(url);
  context.on('request', (request) => {
    const { protocol, origin: asked } = new URL(request.url());
    if (protocol.startsWith('http') && asked !== origin) problems.push(`other origin: ${request.url()}`);
  });
  const page = await context.newPage();
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() !== 'error' && message.type() !== 'warning') return;
    const status = FAILED.exec(message.text())?.[1];
    if (status === undefined || !forgiven.has(Number(status)))
      problems.push(`log: ${message.text()} ${message.location().url}`);
  });
  return {
    context,
    page,
    problems,
    forgive(...statuses) {
      for (const status of statuses) forgiven.add(status);
    },
  };
}
