import type { Locator, Page } from 'playwright-core';

/** More than any page has stops. */
const STOPS_MAX = 150;

/** Runs in the page. */
function focusState(element: object): 'focused' | 'elsewhere' | 'replaced' {
  const { document } = globalThis as unknown as { document: { activeElement: unknown } };
  if (element === document.activeElement) return 'focused';
  return (element as { isConnected: boolean }).isConnected ? 'elsewhere' : 'replaced';
}

/** Uses a page as somebody without a mouse does. */
export class Keyboard {
  readonly #page: Page;

  constructor(page: Page) {
    this.#page = page;
  }

  press(...keys: string[]): Promise<void> {
    return keys.reduce((before, key) => before.then(() => this.#page.keyboard.press(key)), Promise.resolve());
  }

  type(text: string): Promise<void> {
    return this.#page.keyboard.type(text);
  }

  /** Moves the focus with Tab. @throws Error if that does not reach the control */
  async reach(control: Locator): Promise<void> {
    // Finding it again after each stop would cost more than the key. A page that is drawn again may replace it.
    let element = await control.elementHandle();
    for (let stop = 0; stop < STOPS_MAX; stop += 1) {
      const state = await element?.evaluate(focusState);
      if (state === 'focused') return;
      if (state === 'replaced') element = await control.elementHandle();
      else await this.press('Tab');
    }
    throw new Error(`Tab does not reach ${control}`);
  }

  /** Reaches a button or a link, and presses Enter. */
  async use(control: Locator): Promise<void> {
    await this.reach(control);
    await this.press('Enter');
  }

  async fill(field: Locator, text: string): Promise<void> {
    await this.reach(field);
    await this.press('Control+a');
    await this.type(text);
  }

  /** Waits until the page has moved the focus, for instance into a dialog. */
  async focused(control: Locator): Promise<void> {
    await control.and(this.#page.locator(':focus')).waitFor();
  }

  /** Goes to a page, or does something, by its words in the palette. */
  async go(words: string): Promise<void> {
    await this.press('Control+k');
    await this.focused(this.#page.getByRole('combobox', { name: 'Search and commands' }));
    await this.type(words);
    await this.#page.getByRole('dialog').locator('[role=option][data-focused]').waitFor();
    await this.press('Enter');
  }
}
