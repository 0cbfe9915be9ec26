import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './stack.ts';

/** The clock of a stack's agent, which a test can set. The agent's program is as it always is. */
export class AgentClock {
  readonly #folder = temporaryFolder();
  readonly #offsetFile = join(this.#folder, 'offset');

  constructor() {
    copyFileSync(join(import.meta.dirname, 'shifted-clock.ts'), this.#preload);
    this.set(0);
  }

  /** Settings of the stack. Its other parts load it too and keep their time. */
  get env(): Record<string, string> {
    return { NODE_OPTIONS: `--import ${this.#preload}`, CLOCK_OFFSET_FILE: this.#offsetFile };
  }

  /** @param aheadSeconds of this machine's clock; negative for behind */
  set(aheadSeconds: number): void {
    writeFileSync(this.#offsetFile, String(aheadSeconds * 1000));
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** A copy, because the agent's user can't reach every folder. */
  get #preload(): string {
    return join(this.#folder, 'shifted-clock.ts');
  }
}
