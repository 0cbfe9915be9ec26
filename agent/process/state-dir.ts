/** The agent's own folder, unless STATE_DIR names another. */
export const DEFAULT_STATE_DIR = '/var/lib/branchgate';
