/** Network rules of one project. The host is told all of them in one message: with more, it would be told nothing. */
export const NETWORK_RULES_MAX = 2000;
