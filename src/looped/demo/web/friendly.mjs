/** A mistake that a visitor can understand: its message is shown as it is. */
export class Friendly extends Error {}
