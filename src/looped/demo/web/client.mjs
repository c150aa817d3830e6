// Models as the page sees them: each lives in a worker of its own, so that nothing on the page waits for a loop.

/** The models that the page knows, by name: {name, task, block, loops, parameters, test, file}. */
export const registry = new Map();

const remotes = new Map();

/** A worker that is asked and answers. A page from disk may not load one from a file, so its code lies in the page. */
export class Thread {
  #calls = new Map();
  #lastCall = 0;
  onFrame = null;

  constructor() {
    const code = document.getElementById("worker-code").textContent;
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    this.worker = new Worker(url);
    this.worker.onmessage = ({ data }) => this.#receive(data);
    this.worker.onerror = (event) => this.#fail(event.message);
  }

  close() {
    this.worker.terminate();
  }

  call(kind, request) {
    const call = ++this.#lastCall;
    this.worker.postMessage({ kind, call, ...request });
    return new Promise((resolve, reject) => this.#calls.set(call, { resolve, reject }));
  }

  #receive({ kind, call, ticket, frame, answer, message }) {
    if (kind === "frame") {
      this.onFrame?.(ticket, frame);
      return;
    }
    const { resolve, reject } = this.#calls.get(call);
    this.#calls.delete(call);
    if (kind === "answer") resolve(answer);
    else reject(new Error(message));
  }

  #fail(message) {
    for (const { reject } of this.#calls.values()) reject(new Error(message));
    this.#calls.clear();
  }
}

/** A model in its worker. */
export class Remote extends Thread {
  #ticket = 0;
  #turn = Promise.resolve();

  constructor(source) {
    super();
    this.ready = this.call("load", { source, wasm: document.getElementById("kernel").textContent.trim() });
  }

  /** Run the loops from + 1 to `loops` for these inputs; `ticket` of an earlier call goes on where that one stopped. */
  run(inputs, { ticket = ++this.#ticket, from = 0, loops, attention = false, onFrame }) {
    this.onFrame = (number, frame) => {
      if (number === ticket) onFrame(frame);
    };
    return { ticket, finished: this.call("run", { ticket, inputs, from, loops, attention }) };
  }

  /** End the run with this ticket, if it is still going. */
  stop(ticket) {
    this.call("stop", { ticket });
  }

  /** Do some work with this model after what others have asked of it: it can follow one input at a time. */
  inTurn(work) {
    const done = this.#turn.then(work);
    this.#turn = done.catch(() => {});
    return done;
  }

  modulation(loops, layer = 0) {
    return this.call("modulation", { loops, layer });
  }
}

// A model beside the page is a script that calls this with its base64: a page opened from disk may load scripts only.
const arriving = new Map();
globalThis.loopedModel = (name, base64) => arriving.get(name)?.resolve(base64);

function fetchScript(name, file) {
  return new Promise((resolve, reject) => {
    arriving.set(name, { resolve });
    const script = document.createElement("script");
    script.src = file;
    script.onerror = () =>
      reject(new Error(`The file ${file} is not beside this page. “looped demo” writes both together.`));
    document.head.append(script);
  });
}

/** Return the model of this name, loading it if need be. */
export function openModel(name) {
  if (!remotes.has(name)) {
    const entry = registry.get(name);
    const inside = document.getElementById(`model ${name}`);
    const source = entry.source ?? inside?.textContent.trim() ?? fetchScript(name, entry.file);
    const opened = Promise.resolve(source).then(async (bytes) => {
      const remote = new Remote(bytes);
      remote.about = (await remote.ready).about;
      return remote;
    });
    opened.catch(() => remotes.delete(name));
    remotes.set(name, opened);
  }
  return remotes.get(name);
}

/** Add a visitor's own model under a name of its own; return its entry. */
export async function addOwnModel(fileName, bytes) {
  const remote = new Remote(bytes);
  const { about } = await remote.ready.catch((error) => {
    remote.close();
    throw error;
  });
  const base = `own/${fileName.replace(/\.safetensors$/, "")}`;
  let name = base;
  for (let copy = 2; registry.has(name); copy++) name = `${base} (${copy})`;
  remote.about = about;
  const entry = entryOf(name, about, bytes.byteLength);
  registry.set(name, entry);
  remotes.set(name, Promise.resolve(remote));
  return entry;
}

/** Return what the page shows of a model, from what its file says. */
export function entryOf(name, about, bytes) {
  const { model, task } = about.config;
  return {
    name,
    bytes,
    task: task.name,
    block: model.block,
    loops: model.num_loops,
    layers: model.num_layers,
    heads: model.num_heads,
    parameters: about.parameters,
    test: about.test ?? null,
    config: about.config,
    own: true,
  };
}

const MOST_LOOPS = 512;
const FREE_TABLES = new Set(["table", "eta"]);

/** Return how many loops can be run: a standard model has one, and a free table has rows for the trained ones alone. */
export function mostLoops({ block, loops, config: { model } }) {
  const bound =
    block === "standard" || (FREE_TABLES.has(model.conditioning) && (model.extrapolation ?? "extend") === "extend");
  return bound ? loops : Math.max(MOST_LOOPS, loops);
}

/** Return the models of a task: those inside the page first, and the better before the worse. */
export const modelsOf = (task) =>
  [...registry.values()]
    .filter((entry) => entry.task === task)
    .sort((a, b) => Boolean(a.file) - Boolean(b.file) || (b.test?.value ?? 0) - (a.test?.value ?? 0));

/** Say that a link names a model that is not here; nothing where all are, or where it names none. */
export function missing(tasks, ...names) {
  const name = names.find((each) => each && !tasks.includes(registry.get(each)?.task));
  if (!name) return "";
  const remedy = name.startsWith("own/") ? " Drop its file on the page, then open the link again." : "";
  return `The link asks for the model ${name}, which is not in this page, so another one is shown.${remedy}`;
}

/** The loops of one model on one input: frames[t] is what is known after loop t (frames[0] is null). */
export class Trajectory {
  constructor(entry, inputs, { attention = false, onFrame, onError }) {
    Object.assign(this, { entry, inputs, attention, onFrame, onError });
    this.frames = [null];
    this.wanted = 0;
    this.closed = false;
  }

  get done() {
    return this.frames.length - 1;
  }

  /** How far a player may go: as far as loops are done, and on where there can be no more. */
  get reach() {
    return this.done >= mostLoops(this.entry) ? Infinity : this.done;
  }

  /** Have at least so many loops computed, or all that there can be. */
  async extend(wanted) {
    const loops = Math.min(wanted, mostLoops(this.entry));
    if (loops <= this.wanted || this.closed) return;
    this.wanted = loops;
    if (this.running) return; // it goes on until all that is wanted is there
    this.running = true;
    try {
      this.remote = await openModel(this.entry.name);
      await this.remote.inTurn(() => this.#run());
    } catch (error) {
      if (!this.closed) this.onError(error);
    } finally {
      this.running = false;
    }
  }

  async #run() {
    while (this.done < this.wanted && !this.closed) {
      const { ticket, finished } = this.remote.run(this.inputs, {
        ticket: this.ticket,
        from: this.done,
        loops: this.wanted,
        attention: this.attention,
        onFrame: (frame) => {
          if (this.closed || frame.loop !== this.frames.length) return;
          this.frames.push(frame);
          this.onFrame(frame);
        },
      });
      this.ticket = ticket;
      await finished;
    }
  }

  close() {
    this.closed = true;
    if (this.ticket) this.remote.stop(this.ticket);
  }
}
