import { HostError } from './host-error.ts';

interface Limits {
  ofProject: number;
  ofHost: number;
  /** What is counted, for the message: `comparison`. */
  noun: string;
}

/**
 * Admits long work of projects before it takes one of the agent's sessions: calls that wait in a session for
 * their turn would leave none for other operations.
 */
export class ProjectGate {
  readonly #limits: Limits;
  readonly #projects: string[] = [];

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  /**
   * @returns a function that ends it
   * @throws HostError PROJECT_BUSY, HOST_BUSY immediately
   */
  enter(projectId: string): () => void {
    const { ofProject, ofHost, noun } = this.#limits;
    if (this.#projects.filter((id) => id === projectId).length >= ofProject)
      throw new HostError('PROJECT_BUSY', `another ${noun} of this project is under way`);
    if (this.#projects.length >= ofHost) throw new HostError('HOST_BUSY', `too many ${noun}s are under way`);
    this.#projects.push(projectId);
    return () => {
      this.#projects.splice(this.#projects.indexOf(projectId), 1);
    };
  }
}
